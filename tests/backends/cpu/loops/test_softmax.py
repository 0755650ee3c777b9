"""Softmax along axes with others behind them, and its logarithm along the last one."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cpu.loops import table
from lamina.ops.primitives import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.runtime import Device
from lamina.spec import DType, Spec, bfloat16, float16, float32, float64
from tests.helpers.eager import execute, mismatch
from tests.helpers.loops import needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("op", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 10, 7), (1,)), ((5, 600), (0,)), ((2, 3, 4, 5), (1, 2)), ((2, 1, 3), (1,))]
)
def test_values(op: type, shape: tuple[int, ...], axis: tuple[int, ...], dtype: DType) -> None:
    made = op(axis)
    arrays = [
        np.random.default_rng(i).standard_normal(shape).astype(dtype.numpy) for i in range(made.arity or 1)
    ]
    found = plan(made, [Spec(shape, dtype).fixed] * len(arrays))
    (y,) = execute(Device("cpu"), found, arrays)
    wide = [a.astype(np.float64) for a in arrays]
    assert mismatch(y, made.reference(*wide)[0].astype(dtype.numpy), dtype) == ""


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 10), (7,), (2, 3, 600), (4, 1)])
def test_the_logarithm_along_the_last_axis(shape: tuple[int, ...], dtype: DType) -> None:
    op = LogSoftmax((len(shape) - 1,))
    x = (np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype.numpy)
    (y,) = execute(Device("cpu"), plan(op, [Spec(shape, dtype).fixed]), [x])
    assert mismatch(y, op.reference(x.astype(np.float64))[0].astype(dtype.numpy), dtype) == ""


def test_the_logarithm_is_as_exact_as_its_type() -> None:
    """Of few numbers, too, and in gradients: the sum's logarithm is one of the type's, not a coarser one."""
    x = np.random.default_rng(1).standard_normal((400, 5)).astype(np.float32)
    g = np.random.default_rng(2).standard_normal((400, 5)).astype(np.float32)
    wide = x.astype(np.float64)
    wanted = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    for run in (ops.log_softmax, lm.jit(ops.log_softmax)):
        np.testing.assert_allclose(run(lm.tensor(x), -1).numpy(), wanted, rtol=0, atol=1e-6)
    slope = lm.grad(lambda x: (ops.log_softmax(x, -1) * g).sum())(lm.tensor(x)).numpy()
    np.testing.assert_allclose(slope, g - np.exp(wanted) * g.sum(-1, keepdims=True), rtol=0, atol=2e-6)


@pytest.mark.parametrize("op", [Softmax((0,)), LogSoftmax((0,)), LogSoftmax((1,))])
def test_what_is_not_finite(op: Softmax | LogSoftmax) -> None:
    """As the op's meaning: a column with NaN or inf is NaN, -inf counts as 0, and columns are apart."""
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    x[1, 1], x[2, 3], x[0, 5], x[:, 7], x[3, 8] = np.nan, np.inf, -np.inf, -np.inf, 3e38
    x = x.T.copy() if op.axis == (1,) else x
    (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, float32).fixed]), [x])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, reference_of(op, [x])[0], rtol=2e-6, atol=1e-7)


def test_the_last_axis_and_axes_apart_are_left_to_others() -> None:
    for shape, axis in (((3, 5), (1,)), ((3, 4, 5), (0, 2)), ((2, 3, 4, 5), (0, 2))):
        with pytest.raises(NoKernel, match="left to others"):
            plan(Softmax(axis), [Spec(shape, float32).fixed])


def test_only_the_exact_logarithm_is_worth_a_kernel_for_a_few_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "LEAST", 1000)
    few, many = Spec((4, 5), float32).fixed, Spec((40, 50), float32).fixed
    for op, places in (
        (LogSoftmax((1,)), 1),
        (LogSoftmax((0,)), 1),
        (Softmax((0,)), 1),
        (SoftmaxGrad((0,)), 2),
    ):
        assert plan(op, [many] * places).label == f"loops {op.name}"
        if isinstance(op, LogSoftmax):
            assert plan(op, [few]).label == "loops log_softmax"
        else:
            with pytest.raises(NoKernel, match="is not worth a kernel"):
                plan(op, [few] * places)
