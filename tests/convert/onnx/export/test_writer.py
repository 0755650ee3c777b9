"""Every op is written, composed, or refused with a reason; own ops are entered by the user."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest

from lamina import nn, ops
from lamina.convert import ExportError, to_onnx
from lamina.convert.onnx.export import OpExport, composes, exports, how
from lamina.convert.onnx.export.writer import FORMS, REFUSED, WRITERS, ModelWriter
from lamina.graph import trace
from lamina.ops.core import REGISTRY, Array, Op, call
from lamina.ops.primitives.collective import Collective
from lamina.spec import Spec, float32, int64
from tests.helpers.onnx_exports import LACKING, exported_ops, samples, verdict
from tests.helpers.own_ops import unregistered

pytestmark = pytest.mark.feature("B026")
#: Ops of forward passes that no model holds: each with what the reason says.
REASONS = {
    "ctc_loss": "no operator", "dropout": "state", "dropout_mask": "state", "random_normal": "state",
    "random_uniform": "state",
    "foreach": "compiled graphs", "fused": "compiled graphs", "max_pool_gather": "gradient",
    "polygamma": "no operator", "fused_elementwise": "compiled graphs", "symmetric_eigen": "no operator",
    "singular_values": "no operator", "cofactors": "training",
}  # fmt: skip


def forward_ops() -> list[type[Op]]:
    """Ops of the package that forward passes are made of: no gradients, no updates."""
    found = [op for op in REGISTRY.values() if op.__module__.startswith("lamina.ops.primitives.")]
    return [op for op in found if not op.name.endswith(("_grad", "_update"))]


def test_every_op_of_forward_passes_is_written_or_refused_with_a_reason() -> None:
    refused = {op.name: how(op) for op in forward_ops() if how(op) not in ("exported", "composed")}
    collective = {op.name for op in forward_ops() if issubclass(op, Collective)}
    assert all("several ranks" in refused.pop(name) for name in collective)
    assert set(refused) == set(REASONS)
    for name, reason in refused.items():
        assert REASONS[name] in reason
    assert len(forward_ops()) - len(refused) > 85
    assert not set(WRITERS) & set(FORMS)
    assert not (set(WRITERS) | set(FORMS)) & set(REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("op", exported_ops(), ids=lambda op: op.name)
def test_all_samples_of_all_types(op: type[Op]) -> None:
    """In three opsets; a model of the same versions of operators as one before is not run again. Gradients that are
    composed of their formula, of ops that are compared in all opsets, in one of them and in the wide types.
    """
    formula = op.name.endswith("_grad") and op not in WRITERS
    for sample, dtype in samples(op):
        if formula and dtype.itemsize < 4:
            continue
        ran: set[bytes] = set()
        for opset in (20,) if formula else (17, 20, 23):
            found = verdict(sample, dtype, opset, ran)
            wrong = [t for t in found if not (opset < 20 and " came with opset " in t)]
            assert wrong == [], f"{sample} {dtype} in opset {opset}"


def test_what_is_refused_names_op_and_module() -> None:
    class Noise(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + ops.random_normal(x[0, :2].cast(int64), (3,))[0] * x

    net = nn.Sequential(nn.Linear(3, 3), Noise())
    with pytest.raises(
        ExportError, match=r"random_normal\(.*\) of module '1': ONNX has no counterpart: it draws"
    ):
        to_onnx(net, Spec((2, 3), float32))
    with pytest.raises(ExportError, match="ONNX has no operator for it"):
        to_onnx(ops.erfinv, Spec((2,), float32))
    with pytest.raises(ExportError, match="came with opset 18"):
        to_onnx(lambda a, b: a & b, Spec((2,), int64), Spec((2,), int64), opset=17)
    assert "erfinv" in LACKING


with unregistered():

    @dataclass(frozen=True)
    class Swapped(Op):
        """(a, b) -> (b, a)."""

        arity = 2

        def infer(self, a: Spec, b: Spec) -> tuple[Spec, Spec]:
            return b, a

        def reference(self, a: Array, b: Array) -> tuple[Array, Array]:
            return b, a

    @dataclass(frozen=True)
    class Cubed(Op):
        """x³."""

        def infer(self, x: Spec) -> tuple[Spec]:
            return (x,)

        def reference(self, x: Array) -> tuple[Array]:
            return (x**3,)


def test_ops_of_ones_own_are_written_by_ones_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (WRITERS, FORMS):
        for op in (Swapped, Cubed):
            monkeypatch.delitem(table, op, raising=False)
    x = Spec((2, 3), float32)
    with pytest.raises(ExportError, match="cubed"):
        to_onnx(lambda v: call(Cubed(), v), x)

    def swapped(step: OpExport) -> Sequence[str]:
        return step.inputs[::-1]

    def cubed(op: Cubed, v: Any) -> Any:
        return v * v * v

    monkeypatch.setitem(WRITERS, Swapped, exports(Swapped)(swapped))
    monkeypatch.setitem(FORMS, Cubed, composes(Cubed)(cubed))
    model = to_onnx(lambda v, w: call(Swapped(), call(Cubed(), v), w), x, x)
    assert [n.op_type for n in model.graph.node] == ["Identity"]
    assert [n.op_type for n in to_onnx(lambda v: call(Cubed(), v), x).graph.node] == ["Mul", "Mul"]


def test_equal_constants_are_written_once_and_names_differ() -> None:
    writer = ModelWriter(20)
    a, b = writer.constant(np.ones(3)), writer.constant(np.ones(3))
    assert a == b
    assert writer.constant(np.ones(3, np.float32)) != a
    assert [writer.claim("x") for _ in range(3)] == ["x", "x_1", "x_2"]
    graph = trace(lambda x: (x * 2.0) + 2.0, Spec((2,), float32))
    assert sum(t.name.startswith("constant") for t in to_onnx(graph).graph.initializer) == 1


#: Sizes of a 2-d input with free axes -> what a constant is made of: one kind of each formula of sizes.
FORMULAS: dict[str, Callable[[int, int], Any]] = {
    "a size": lambda b, t: np.full((b, 3), 2.5, np.float32),
    "a multiple": lambda b, t: np.full((3, 2 * t), 2.5, np.float32),
    "a sum": lambda b, t: np.full((t + 3,), 7, np.int64),
    "a difference": lambda b, t: np.full((2 * b - 1, t - 1), -1.0, np.float32),
    "a product": lambda b, t: np.full((b * t,), 0.5, np.float32),
    "a product of three": lambda b, t: np.full((3 * b * b * t,), 0.5, np.float32),
    "rows of a free number": lambda b, t: np.tile(np.arange(3, dtype=np.float32) ** 2, (b, 1)),
    "a block between two": lambda b, t: np.tile(np.float32([[[2], [-1]]]), (t, 1, b)),
    "counted": lambda b, t: np.arange(t),
    "counted from a number in steps": lambda b, t: np.arange(3, 3 + 2 * t, 2, dtype=np.float32),
    "counted down along an axis": lambda b, t: -np.arange(1, 2 * t, dtype=np.int32).reshape(1, -1, 1),
    "counted as often as both": lambda b, t: np.arange(b * t).reshape(-1, 1),
    "below a diagonal": lambda b, t: np.tri(t, t, 0, dtype=bool),
    "below another diagonal": lambda b, t: np.tri(t, 2 * t, 1, dtype=bool)[None],
    "above a diagonal": lambda b, t: ~np.tri(t, t, 0, dtype=bool),
    "a number that is a size": lambda b, t: np.float32(t),
    "the reciprocal of one less than a product": lambda b, t: np.float32(1 / (b * t + 1)),
    "the reciprocal of a root": lambda b, t: np.float64(t**-0.5),
    "a whole number": lambda b, t: np.int32(b - 1),
    "a half, rounded up": lambda b, t: np.full(((t + 1) // 2,), 1.5, np.float32),
    "a third": lambda b, t: np.zeros((1, t // 3 + 1), bool),
    "positions from 0 to 1": lambda b, t: (np.arange(t + 1) / t).astype(np.float32),
    "centers from -1 to 1": lambda b, t: ((2 * np.arange(t + 1) + 1) / (t + 1) - 1).astype(np.float16),
    "distances": lambda b, t: np.arange(t + 1)[:, None] - 2 * np.arange(b + 1),
    "a window": lambda b, t: np.abs(np.arange(t)[:, None] - np.arange(t)) < 2,
    "all but the diagonal": lambda b, t: ~np.eye(t + 1, dtype=bool),
    "an identity": lambda b, t: np.eye(t, dtype=np.float32),
    "a causal bias": lambda b, t: np.triu(np.full((t, t), -np.inf, np.float32), 1),
    "a mark at the beginning": lambda b, t: np.arange(t + 1) == 0,
    "other ends": lambda b, t: np.pad(np.full((2, t), 3.0), ((0, 0), (1, 2)), constant_values=7),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_constants_of_free_sizes_are_computed(name: str) -> None:
    """At sizes that no trace had, by onnxruntime."""
    make = FORMULAS[name]

    def program(x: Any) -> Any:
        return ops.operand(make(*x.shape)), x * 2.0

    model = to_onnx(program, np.zeros((2, 6), np.float32), dynamic={"input_0": {0: "batch", 1: "time"}})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, t in ((2, 6), (1, 1), (9, 5), (3, 20)):
        found, doubled = session.run(None, {"input_0": np.ones((b, t), np.float32)})
        wanted = make(b, t)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(
            found, wanted, rtol=1e-6, atol=2e-3 if wanted.dtype == np.float16 else 1e-6
        )
        assert doubled.shape == (b, t)


def test_half_of_a_size_is_computed() -> None:
    """Where a network takes even sizes alone."""
    model = to_onnx(
        lambda x: ops.operand(np.full((x.shape[0] // 2, 3), 2.5, np.float32)) + x.reshape((-1, 2, 3))[:, 0],
        np.zeros((4, 3), np.float32),
        dynamic="batch",
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for b in (2, 6, 10):
        (found,) = session.run(None, {"input_0": np.ones((b, 3), np.float32)})
        np.testing.assert_array_equal(found, np.full((b // 2, 3), 3.5))
