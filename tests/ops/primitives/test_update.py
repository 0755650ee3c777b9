"""Optimizer steps against their rules, written with Python's floats over several steps; who may know their names."""

import ast
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lamina import ops
from lamina.ops.core import REGISTRY
from lamina.spec import ShapeError
from tests.helpers.functions import run
from tests.helpers.sources import files, nodes

RATE = np.array(0.125, np.float32)


def _steps(count: int = 5) -> Any:
    rng = np.random.default_rng(0)
    return rng.standard_normal(6), rng.standard_normal((count, 6))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ],
)
def test_sgd(options: dict[str, Any]) -> None:
    """The first step sets the buffer to the gradient, as a buffer of zeros does without dampening."""
    momentum, decay = options.get("momentum", 0.0), options.get("weight_decay", 0.0)
    start, grads = _steps()
    wanted, buffer = start.copy(), None
    p, m = start, np.zeros(6)
    for g in grads:
        d = g + decay * wanted
        buffer = d if buffer is None else momentum * buffer + d
        wanted = wanted - 0.125 * (
            d + momentum * buffer if options.get("nesterov") else buffer if momentum else d
        )
        p, m = run(ops.sgd_update, p, g, m, RATE, **options)
    np.testing.assert_allclose(p, wanted, rtol=1e-12)
    np.testing.assert_allclose(m, buffer if momentum else 0, rtol=1e-12)


def test_dampening_acts_from_the_first_step() -> None:
    _, m = run(ops.sgd_update, np.zeros(1), np.ones(1), np.zeros(1), RATE, momentum=0.5, dampening=0.25)
    assert m.tolist() == [0.75]
    _, m = run(ops.sgd_update, np.zeros(1), np.ones(1), m, RATE, momentum=0.5, dampening=0.25)
    assert m.tolist() == [0.375 + 0.75]


@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
def test_adam(decay: float, decoupled: bool) -> None:
    start, grads = _steps()
    wanted, first, second = start.copy(), np.zeros(6), np.zeros(6)
    p, m, v, step = start, np.zeros(6), np.zeros(6), np.array(0)
    for t, g in enumerate(grads, 1):
        wanted = wanted * (1 - 0.125 * decay) if decoupled else wanted
        d = g if decoupled else g + decay * wanted
        first, second = 0.8 * first + 0.2 * d, 0.95 * second + 0.05 * d * d
        corrected = first / (1 - 0.8**t), second / (1 - 0.95**t)
        wanted = wanted - 0.125 * corrected[0] / (np.sqrt(corrected[1]) + 1e-6)
        p, m, v, step = run(
            ops.adam_update, p, g, m, v, step, RATE,
            beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=decay, decoupled=decoupled,
        )  # fmt: skip
    np.testing.assert_allclose(p, wanted, rtol=1e-12)
    assert step.tolist() == 5
    assert step.dtype == np.int64


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_half_gradients_are_widened(half: Any) -> None:
    p = np.float32([1.0, 2.0])
    g = np.array([1 / 3, 5.0], half)
    found = run(ops.sgd_update, p, g, p, RATE, momentum=0.9)
    wide = run(ops.sgd_update, p, g.astype(np.float32), p, RATE, momentum=0.9)
    for a, b in zip(found, wide, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b)


@pytest.mark.feature("F118")
def test_errors() -> None:
    p, half = np.zeros(3, np.float32), np.zeros(3, np.float16)
    with pytest.raises(TypeError, match="sgd_update: dtype float16 is not among float64, float32"):
        run(ops.sgd_update, half, half, half, RATE)
    with pytest.raises(TypeError, match="sgd_update: input 1 is float64 but input 0 is float32"):
        run(ops.sgd_update, p, p, p.astype(float), RATE)
    with pytest.raises(ShapeError, match=r"must have one shape, got f32\[3\], f32\[2\], f32\[3\]"):
        run(ops.sgd_update, p, p[:2], p, RATE)
    with pytest.raises(TypeError, match=r"learning rate must be f32\[\] or f64\[\], got f16\[\]"):
        run(ops.sgd_update, p, p, p, np.array(0.1, np.float16))
    with pytest.raises(TypeError, match="gradient must be a float"):
        run(ops.sgd_update, p, np.zeros(3, int), p, RATE)
    with pytest.raises(TypeError, match=r"step must be i64\[\], got f32\[\]"):
        run(ops.adam_update, p, p, p, p, RATE, RATE)


#: The ops that bring state to the next step, by the name of their class.
UPDATES = {op.__name__ for op in REGISTRY.values() if op.effect == "update"} | {"Update"}


def _asked_by_class(nodes: Iterable[ast.AST]) -> list[str]:
    """The update classes that isinstance, issubclass, `type(x) is` or a match statement ask for."""
    asked: list[ast.AST] = []
    for node in nodes:
        called = getattr(getattr(node, "func", None), "id", "")
        if isinstance(node, ast.Call) and called in ("isinstance", "issubclass"):
            asked += node.args[1:]
        elif isinstance(node, ast.Compare):
            asked += node.comparators
        elif isinstance(node, ast.MatchClass):
            asked.append(node.cls)
    names = [getattr(n, "id", getattr(n, "attr", "")) for found in asked for n in ast.walk(found)]
    return [name for name in names if name in UPDATES]


def test_nobody_asks_for_an_update_by_its_class() -> None:
    """Passes and planners go by what an op says of itself; a backend may know the ops that it has kernels for."""
    found = {path: _asked_by_class(nodes(path)) for path in files()}
    found.pop("ops/primitives/update.py")
    assert [path for path, names in found.items() if names and not path.startswith("backends/")] == []


@pytest.mark.parametrize(
    "text",
    ["isinstance(op, SgdUpdate | Cast)", "type(op) is ops.AdamUpdate", "type(op) in (SgdUpdate,)"],
)
def test_asking_for_a_class_is_noticed(text: str) -> None:
    assert len(_asked_by_class(ast.walk(ast.parse(text)))) == 1
