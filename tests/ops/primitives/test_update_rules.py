"""Rules over tensors of many blocks, the scalars and norms that they go by, and what is refused."""

from typing import Any

import numpy as np
import pytest

from lamina.backends import Call, get
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY
from lamina.ops.primitives.update import Update
from lamina.ops.primitives.update_rules import AdagradUpdate, LarsUpdate, NadamUpdate, RpropUpdate, trust
from lamina.runtime import device
from lamina.spec import DTypeError, Policy, Spec, float16, float32, float64, int64

UPDATES = [op for op in REGISTRY.values() if issubclass(op, Update)]


def arguments(op: Update, count: int, gradient: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [arg.draw(rng, float32) for arg in op._arguments((count,), gradient, 1)]


@pytest.mark.feature("F111")
@pytest.mark.parametrize("gradient", [None, float16], ids=str)
@pytest.mark.parametrize("kind", UPDATES, ids=lambda k: k.name)
def test_a_cpu_takes_large_tensors_in_place(kind: type[Update], gradient: Any) -> None:
    """Several blocks with a rest, the state over its own memory: what the rule makes of the whole at once."""
    op = kind.variants()[2]
    given = arguments(op, 40_003, gradient)
    wanted = run_reference(op, given, float64)
    plan = get(device("cpu")).plan(op, [Spec(a.shape, _dtype(a)) for a in given], Policy())
    assert plan.aliases == {0: 0} | {i: i + 1 for i in range(1, 1 + len(op.kept()))}
    held = [np.array(a) for a in given]

    addresses = tuple(a.ctypes.data for a in held)
    outputs = tuple(addresses[plan.aliases[o]] for o in range(len(plan.outputs)))
    space = np.zeros(plan.workspace + 64, np.uint8)
    plan.bind(Call(addresses, outputs, space.ctypes.data, 0))()
    for o, value in enumerate(wanted):
        np.testing.assert_allclose(held[plan.aliases[o]], value, rtol=2e-4, atol=2e-5, err_msg=str(o))


def _dtype(array: np.ndarray[Any, Any]) -> Any:
    return {"float64": float64, "float32": float32, "float16": float16, "int64": int64}[array.dtype.name]


def test_numbers_of_other_types_are_refused() -> None:
    x, step, rate = Spec((3,), float32), Spec((), int64), Spec((), float32)
    with pytest.raises(DTypeError, match=r"nadam_update: mu_product must be f64\[\], got f32\[\]"):
        NadamUpdate().infer(x, x, x, x, rate, step, rate)
    with pytest.raises(DTypeError, match=r"adagrad_update: step must be i64\[\], got f32\[\]"):
        AdagradUpdate().infer(x, x, x, rate, rate)
    with pytest.raises(DTypeError, match=r"nadam_update: mu_product must be f64\[\], got f64\[3\]"):
        NadamUpdate().infer(x, x, x, x, Spec((3,), float64), step, rate)


def test_trust_is_one_where_a_norm_is_zero() -> None:
    assert [float(trust(a, b)) for a, b in ((2.0, 4.0), (0.0, 4.0), (2.0, 0.0), (0.0, 0.0))] == [0.5, 1, 1, 1]


def test_products_of_small_gradients_keep_their_sign() -> None:
    """1e-30 * 1e-30 is 0 in float32."""
    tiny = np.float32([1e-30, -1e-30])
    p, before, size = np.zeros(2, np.float32), np.float32([1e-30, 1e-30]), np.full(2, 0.5, np.float32)
    new, kept, sizes = RpropUpdate().reference(p, tiny, before, size, np.float32(0.1))
    np.testing.assert_allclose(sizes, [0.6, 0.25], rtol=1e-6)
    np.testing.assert_allclose(new, [-0.6, 0.0], rtol=1e-6)
    assert kept.tolist() == [tiny[0], 0.0]


def test_norms_do_not_overflow_in_the_parameters_type() -> None:
    p = np.full(4, 1e30, np.float32)
    new, _ = LarsUpdate(0.0, trust_coefficient=1.0).reference(p, p, np.zeros_like(p), np.float32(0.5))
    np.testing.assert_allclose(new, 0.5 * p, rtol=1e-6)
