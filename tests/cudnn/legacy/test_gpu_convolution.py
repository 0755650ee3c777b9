"""Convolution and deconvolution on the GPU: every direction, type, order and algorithm, against float64."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from lamina.cudnn import legacy
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import BLENDS, FLOATS, Gpu, Operand, compute_type, ran

pytestmark = pytest.mark.gpu


class Case(NamedTuple):
    x: tuple[int, ...]
    w: tuple[int, ...]
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    flip: bool = False

    @property
    def window(self) -> tuple[Any, ...]:
        return self.pad, self.stride, self.dilation

    @property
    def plain(self) -> bool:
        return self.groups == 1 and max(self.dilation) == 1 and len(self.x) == 4 and not self.flip

    @property
    def y(self) -> tuple[int, ...]:
        return ref.conv_shape(self.x, self.w, *self.window)

    def settings(self, dtype: str) -> dict[str, Any]:
        return {
            "pad": self.pad,
            "stride": self.stride,
            "dilation": self.dilation,
            "groups": self.groups,
            "mode": "convolution" if self.flip else "cross_correlation",
            "compute_type": compute_type(dtype),
            "math_type": "fma" if dtype == "float32" else "default",  # no TF32 in a comparison with float64
        }


CASES = {
    "3x3": Case((2, 8, 10, 9), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": Case((2, 8, 11, 12), (16, 8, 3, 5), (0, 2), (2, 1), (1, 1)),
    "pointwise": Case((2, 16, 7, 6), (8, 16, 1, 1), (0, 0), (1, 1), (1, 1)),
    "dilated": Case((2, 8, 12, 11), (8, 8, 3, 3), (2, 1), (1, 1), (2, 1)),
    "grouped": Case((2, 16, 9, 9), (24, 8, 3, 3), (1, 1), (1, 1), (1, 1), groups=2),
    "flipped": Case((2, 8, 9, 9), (8, 8, 3, 2), (1, 0), (1, 1), (1, 1), flip=True),
    "3d": Case((2, 8, 6, 7, 8), (8, 8, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
}


def sure(case: Case, dtype: str, format: str) -> bool:
    """What cuDNN has always taken: NCHW; all but plain windows in float32 only."""
    if format == "nchw":
        return dtype == "float32" or (dtype in ("float64", "float16") and case.plain)
    return dtype == "float16" and case.plain


ALL = pytest.mark.parametrize("name", CASES)
TYPES = pytest.mark.parametrize("dtype", FLOATS)
FORMATS = pytest.mark.parametrize("format", ["nchw", "nhwc"])
BLENDED = pytest.mark.parametrize(("alpha", "beta"), BLENDS)


@pytest.mark.feature("F045", "F048", "F049", "F050", "F078", "F020")
@ALL
@TYPES
@FORMATS
@BLENDED
def test_forward(gpu: Gpu, name: str, dtype: str, format: str, alpha: float, beta: float) -> None:
    case = CASES[name]
    x, w = gpu.tensor(gpu.normal(case.x), dtype, format), gpu.filter(gpu.normal(case.w), dtype, format)
    y = gpu.output(case.y, dtype, format, beta)
    convolution = legacy.Convolution(**case.settings(dtype))
    assert convolution.output(x.desc, w.desc) == y.desc
    operands = {**x.named("x"), **w.named("w"), **y.named("y"), "alpha": alpha, "beta": beta}
    if ran(lambda: convolution.forward(gpu.handle, **operands), sure=sure(case, dtype, format)):
        wanted = ref.conv(x.values, w.values, *case.window, case.groups, case.flip)
        y.check(alpha * wanted + beta * y.values)


@pytest.mark.feature("F046", "F078")
@ALL
@TYPES
@FORMATS
@BLENDED
def test_backward_data(gpu: Gpu, name: str, dtype: str, format: str, alpha: float, beta: float) -> None:
    case = CASES[name]
    dy, w = gpu.tensor(gpu.normal(case.y), dtype, format), gpu.filter(gpu.normal(case.w), dtype, format)
    dx = gpu.output(case.x, dtype, format, beta)
    convolution = legacy.Convolution(**case.settings(dtype))
    operands = {**w.named("w"), **dy.named("dy"), **dx.named("dx"), "alpha": alpha, "beta": beta}
    if ran(lambda: convolution.backward_data(gpu.handle, **operands), sure=sure(case, dtype, format)):
        wanted = ref.conv_data(dy.values, w.values, case.x, *case.window, case.groups, case.flip)
        dx.check(alpha * wanted + beta * dx.values)


@pytest.mark.feature("F046", "F078")
@ALL
@TYPES
@FORMATS
@BLENDED
def test_backward_filter(gpu: Gpu, name: str, dtype: str, format: str, alpha: float, beta: float) -> None:
    case = CASES[name]
    x, dy = gpu.tensor(gpu.normal(case.x), dtype, format), gpu.tensor(gpu.normal(case.y), dtype, format)
    dw = gpu.output(case.w, dtype, format, beta, make="filter")
    convolution = legacy.Convolution(**case.settings(dtype))
    operands = {**x.named("x"), **dy.named("dy"), **dw.named("dw"), "alpha": alpha, "beta": beta}
    if ran(lambda: convolution.backward_filter(gpu.handle, **operands), sure=sure(case, dtype, format)):
        wanted = ref.conv_filter(x.values, dy.values, case.w, *case.window, case.groups, case.flip)
        dw.check(alpha * wanted + beta * dw.values)


@pytest.mark.feature("F046", "F078")
@TYPES
@FORMATS
@BLENDED
def test_backward_bias(gpu: Gpu, dtype: str, format: str, alpha: float, beta: float) -> None:
    dy = gpu.tensor(gpu.normal((2, 8, 7, 6)), dtype, format)
    db = gpu.output((1, 8, 1, 1), dtype, format, beta)
    operands = {**dy.named("dy"), **db.named("db"), "alpha": alpha, "beta": beta}
    run = legacy.Convolution().backward_bias
    certain = format == "nchw" and dtype != "bfloat16"
    if ran(lambda: run(gpu.handle, **operands), sure=certain):
        db.check(alpha * dy.values.sum((0, 2, 3), keepdims=True) + beta * db.values)


# ---------------------------------------------------------------------------------------------- algorithms
def one_of_each(gpu: Gpu, direction: str, case: Case) -> tuple[Any, Operand, np.ndarray[Any, Any]]:
    """A call of a direction that takes an algorithm, its result, and what it should be (float32, NCHW)."""
    convolution = legacy.Convolution(**case.settings("float32"))
    x, w = gpu.tensor(gpu.normal(case.x)), gpu.filter(gpu.normal(case.w))
    y = gpu.tensor(gpu.normal(case.y))
    if direction == "forward":
        out = gpu.output(case.y)
        operands = {**x.named("x"), **w.named("w"), **out.named("y")}
        wanted = ref.conv(x.values, w.values, *case.window)
    elif direction == "backward_data":
        out = gpu.output(case.x)
        operands = {**w.named("w"), **y.named("dy"), **out.named("dx")}
        wanted = ref.conv_data(y.values, w.values, case.x, *case.window)
    else:
        out = gpu.output(case.w, make="filter")
        operands = {**x.named("x"), **y.named("dy"), **out.named("dw")}
        wanted = ref.conv_filter(x.values, y.values, case.w, *case.window)
    method = getattr(convolution, direction)
    return (lambda algo: method(gpu.handle, **operands, algorithm=algo)), out, wanted


@pytest.mark.feature("F082", "F045", "F046")
@pytest.mark.parametrize("direction", legacy.NAMED)
def test_every_algorithm_gives_the_same_or_refuses(gpu: Gpu, direction: str) -> None:
    worked = set()
    for name, member in legacy.NAMED[direction].items():
        run, out, wanted = one_of_each(gpu, direction, CASES["3x3"])
        if ran(lambda run=run, member=member: run(member), sure=name in ("none", "deterministic")):
            out.check(wanted, tolerance=2e-3)  # Winograd and FFT round more
            worked.add(name)
    assert {"none", "deterministic"} <= worked


def needing_a_workspace(gpu: Gpu, convolution: legacy.Convolution, described: Any) -> tuple[str, int]:
    """An algorithm that takes this case and wants scratch memory, with how much."""
    sizes: dict[str, int] = {}
    for name in legacy.NAMED["forward"]:
        run = partial(convolution.forward_workspace, gpu.handle, **described, algorithm=name)
        if ran(lambda run=run, name=name: sizes.update({name: run()}), sure=False) and sizes[name]:
            return name, sizes[name]
    pytest.fail(f"no algorithm wants a workspace: {sizes}")


@pytest.mark.feature("F045")
def test_the_workspace_is_the_callers_or_lent(gpu: Gpu) -> None:
    case = CASES["3x3"]
    x, w, y = gpu.tensor(gpu.normal(case.x)), gpu.filter(gpu.normal(case.w)), gpu.output(case.y)
    convolution = legacy.Convolution(**case.settings("float32"))
    described = {"x_desc": x.desc, "w_desc": w.desc, "y_desc": y.desc}
    name, size = needing_a_workspace(gpu, convolution, described)
    wanted = ref.conv(x.values, w.values, *case.window)
    operands = {**x.named("x"), **w.named("w"), **y.named("y"), "algorithm": name}
    own = gpu.zeros(size)
    for workspace in (own, (own.pointer, size), None):
        convolution.forward(gpu.handle, **operands, workspace=workspace)
        y.check(wanted, tolerance=2e-3)
    lent = gpu.handle.workspace(size)
    assert lent is not None
    assert lent.nbytes >= size
    assert gpu.handle.workspace(size) is lent
    assert gpu.handle.workspace(0) is None


# --------------------------------------------------------------------------------------------------- fused
@pytest.mark.feature("F052")
@TYPES
@FORMATS
@pytest.mark.parametrize("with_z", [False, True])
@pytest.mark.parametrize("mode", ["relu", "identity"])
def test_bias_activation_forward(gpu: Gpu, dtype: str, format: str, with_z: bool, mode: str) -> None:
    case = CASES["3x3"]
    x, w = gpu.tensor(gpu.normal(case.x), dtype, format), gpu.filter(gpu.normal(case.w), dtype, format)
    bias = gpu.tensor(gpu.normal((1, 16, 1, 1)), dtype, format)
    z, y = gpu.tensor(gpu.normal(case.y), dtype, format), gpu.output(case.y, dtype, format)
    added = {**z.named("z"), "alpha2": 0.5} if with_z else {}
    operands = {**x.named("x"), **w.named("w"), **bias.named("bias"), **y.named("y"), **added, "alpha1": 2.0}
    convolution, activation = legacy.Convolution(**case.settings(dtype)), legacy.Activation(mode)
    if not with_z:  # z stands for y, which holds NaN, times 0: cuDNN may read it
        y = gpu.tensor(np.zeros(case.y), dtype, format)
        operands |= y.named("y")

    def run() -> None:
        convolution.bias_activation_forward(gpu.handle, **operands, activation=activation)

    if ran(run, sure=dtype in ("float32", "float16") and format == "nchw" and mode == "relu"):
        wanted = 2 * ref.conv(x.values, w.values, *case.window) + bias.values
        wanted = wanted + 0.5 * z.values if with_z else wanted
        y.check(np.maximum(wanted, 0) if mode == "relu" else wanted)


@pytest.mark.feature("F045", "F019")
@pytest.mark.parametrize("result", ["int8", "float32"])
def test_int8(gpu: Gpu, result: str) -> None:
    """int8 tensors in NHWC, sums in int32; an int8 result is cut to its range."""
    case = Case((2, 32, 9, 8), (32, 32, 3, 3), (1, 1), (1, 1), (1, 1))
    x, w = gpu.tensor(gpu.integers(case.x), "int8", "nhwc"), gpu.filter(gpu.integers(case.w), "int8", "nhwc")
    y = gpu.output(case.y, result, "nhwc")
    convolution = legacy.Convolution(pad=1, compute_type="int32", math_type="tensor_op")
    operands = {**x.named("x"), **w.named("w"), **y.named("y")}
    if ran(lambda: convolution.forward(gpu.handle, **operands), sure=False):
        wanted = ref.conv(x.values, w.values, *case.window)
        y.check(np.clip(wanted, -128, 127) if result == "int8" else wanted)


@pytest.mark.feature("F019")
@pytest.mark.parametrize(("data_type", "lanes"), [("int8x4", 4), ("int8x32", 32)])
def test_vectorised_int8(gpu: Gpu, data_type: str, lanes: int) -> None:
    """N, C / lanes, H, W, lanes: 4 or 32 channels lie side by side."""

    def packed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        n, c, h, w = values.shape
        return values.reshape(n, c // lanes, lanes, h, w).transpose(0, 1, 3, 4, 2).astype(np.int8)

    case = Case((2, 32, 9, 8), (32, 32, 3, 3), (1, 1), (1, 1), (1, 1))
    x, w = gpu.integers(case.x, -2, 3), gpu.integers(case.w, -2, 3)
    kind = {"data_type": data_type, "format": "nchw_vect_c"}
    x_desc, y_desc = legacy.TensorDescriptor(case.x, **kind), legacy.TensorDescriptor(case.y, **kind)
    w_desc, y = legacy.FilterDescriptor(case.w, **kind), gpu.zeros(int(np.prod(case.y)))
    convolution = legacy.Convolution(pad=1, compute_type="int32", math_type="tensor_op", reorder="no")
    filters, reordered = gpu.put(packed(w)), gpu.zeros(w_desc.nbytes)
    if lanes == 32:
        run = lambda: w_desc.reorder(gpu.handle, w=filters, reordered_w=reordered)  # noqa: E731
        if not ran(run, sure=False):
            return
        filters = reordered
    operands = {"x_desc": x_desc, "x": gpu.put(packed(x)), "w_desc": w_desc, "w": filters}
    result = {"y_desc": y_desc, "y": y}
    if ran(lambda: convolution.forward(gpu.handle, **operands, **result), sure=False):
        wanted = np.clip(ref.conv(x, w, *case.window), -128, 127)
        found = gpu.read(y, packed(wanted).shape, "int8")
        assert np.array_equal(found, packed(wanted))


@pytest.mark.feature("F053")
def test_im2col(gpu: Gpu) -> None:
    case = CASES["strided"]
    x, w = gpu.tensor(gpu.normal(case.x)), gpu.filter(gpu.normal(case.w))
    convolution = legacy.Convolution(**case.settings("float32"))
    wanted = ref.columns(x.values, case.w, *case.window)  # N·P·Q × C·R·S
    memory = gpu.zeros(4 * wanted.size)
    convolution.im2col(gpu.handle, **x.named("x"), w_desc=w.desc, columns=memory)
    found = gpu.read(memory, (wanted.size,), "float32").astype(np.float64)
    n, rows, taps = case.x[0], wanted.shape[0] // case.x[0], wanted.shape[1]
    orders = {
        "rows of taps": found.reshape(wanted.shape),
        "columns of taps": found.reshape(taps, -1).T,
        "columns of taps, image by image": found.reshape(n, taps, rows).transpose(0, 2, 1).reshape(-1, taps),
    }
    x_rounded = wanted.astype(np.float32)
    assert any(np.array_equal(order, x_rounded) for order in orders.values())


# --------------------------------------------------------------------------------------------- deconvolution
@pytest.mark.feature("F047", "F021", "F078")
@pytest.mark.parametrize("name", ["3x3", "strided", "grouped", "3d"])
@TYPES
@BLENDED
def test_deconvolution(gpu: Gpu, name: str, dtype: str, alpha: float, beta: float) -> None:
    """Forward, both gradients and the bias gradient; y is as large as the case's x."""
    case = CASES[name]
    certain = sure(case, dtype, "nchw")
    x, w = gpu.tensor(gpu.normal(case.y), dtype), gpu.filter(gpu.normal(case.w), dtype)
    y, dy = gpu.output(case.x, dtype, beta=beta), gpu.tensor(gpu.normal(case.x), dtype)
    deconvolution = legacy.Deconvolution(**case.settings(dtype))
    extra = [
        size - short
        for size, short in zip(case.x[2:], deconvolution.output_dims(x.desc, w.desc)[2:], strict=True)
    ]
    assert deconvolution.output_dims(x.desc, w.desc, output_padding=extra) == case.x
    window, blend = (*case.window, case.groups), {"alpha": alpha, "beta": beta}
    described = {"x_desc": x.desc, "w_desc": w.desc, "y_desc": y.desc}
    operands = {**x.named("x"), **w.named("w"), **y.named("y"), **blend}
    if ran(lambda: deconvolution.forward(gpu.handle, **operands), sure=certain):
        wanted = ref.conv_data(x.values, w.values, case.x, *window)
        y.check(alpha * wanted + beta * y.values)
        assert deconvolution.forward_workspace(gpu.handle, **described) >= 0
    dx = gpu.output(case.y, dtype, beta=beta)
    operands = {**w.named("w"), **dy.named("dy"), **dx.named("dx"), **blend}
    if ran(lambda: deconvolution.backward_data(gpu.handle, **operands), sure=certain):
        dx.check(alpha * ref.conv(dy.values, w.values, *window) + beta * dx.values)
    dw = gpu.output(case.w, dtype, beta=beta, make="filter")
    operands = {**x.named("x"), **dy.named("dy"), **dw.named("dw"), **blend}
    if ran(lambda: deconvolution.backward_filter(gpu.handle, **operands), sure=certain):
        wanted = ref.conv_filter(dy.values, x.values, case.w, *window)
        dw.check(alpha * wanted + beta * dw.values)


@pytest.mark.feature("F026")
def test_a_strided_data_gradient_can_be_folded(gpu: Gpu) -> None:
    """cuDNN describes the folded gradient, or says why there is none."""
    case = Case((2, 8, 12, 12), (8, 8, 4, 4), (1, 1), (2, 2), (1, 1))
    x, w = (
        gpu.tensor(gpu.normal(case.x), "float16", "nhwc"),
        gpu.filter(gpu.normal(case.w), "float16", "nhwc"),
    )
    y = gpu.tensor(gpu.normal(case.y), "float16", "nhwc")
    convolution = legacy.Convolution(pad=1, stride=2)
    made: list[legacy.FoldedBackwardData] = []

    def fold() -> None:
        described = {"w_desc": w.desc, "dy_desc": y.desc, "dx_desc": x.desc}
        made.append(convolution.folded_backward_data(gpu.handle, **described, format="nhwc"))

    if ran(fold, sure=False):
        folded = made[0]
        assert folded.convolution.get().stride == (1, 1)
        assert folded.dx_desc.dims[-1] == 8 * 4  # the stride's four phases became channels
        assert folded.fold_w.get().fold == (2, 2)


# ---------------------------------------------------------------------------------------- arrays of others
@pytest.mark.feature("F011", "B002")
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_other_libraries(gpu: Gpu, library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    case = CASES["3x3"]
    host_x, host_w = gpu.normal(case.x).astype(np.float32), gpu.normal(case.w).astype(np.float32)
    if library == "torch":
        if not module.cuda.is_available():
            pytest.skip("this PyTorch is built without CUDA")
        x, w = module.from_numpy(host_x).cuda(), module.from_numpy(host_w).cuda()
        y, wait = module.empty(case.y, device="cuda"), module.cuda.synchronize
        back = lambda: y.cpu().numpy()  # noqa: E731
    else:
        x, w = module.asarray(host_x), module.asarray(host_w)
        y, wait = module.empty(case.y, module.float32), module.cuda.Device().synchronize
        back = lambda: module.asnumpy(y)  # noqa: E731
    wait()
    convolution, w_desc = legacy.Convolution(**case.settings("float32")), legacy.FilterDescriptor(case.w)
    described = {"x_desc": legacy.TensorDescriptor.of(x), "y_desc": legacy.TensorDescriptor.of(y)}
    convolution.forward(gpu.handle, **described, x=x, w_desc=w_desc, w=w, y=y)
    gpu.handle.synchronize()
    np.testing.assert_allclose(back(), ref.conv(host_x, host_w, *case.window), rtol=1e-4, atol=1e-4)
