"""The objects of the imperative API against the real libcudnn, without a GPU: settings, text, lifetime."""

import gc
import itertools
import os
import struct
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import lamina
from lamina.c import cudnn as c
from lamina.c.errors import CudnnBadParam, CudnnError, CudnnNotSupported
from lamina.cudnn import legacy
from lamina.cudnn.legacy import base, flags
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.legacy.makers import MAKERS

pytestmark = needs_cudnn


# --------------------------------------------------------------------------------------------------- settings
@pytest.mark.feature("F017", "F018")
def test_tensors_are_told_in_the_order_that_their_format_names() -> None:
    nhwc = legacy.TensorDescriptor((2, 4, 5, 3), format="nhwc", data_type="float16")
    assert nhwc.get() == ((2, 4, 5, 3), c.CUDNN_DATA_HALF, c.CUDNN_TENSOR_NHWC, (60, 15, 3, 1))
    in_c = c.cudnnGetTensor4dDescriptor(nhwc.address)
    assert (in_c.n, in_c.c, in_c.h, in_c.w) == (2, 3, 4, 5)
    assert (in_c.nStride, in_c.cStride, in_c.hStride, in_c.wStride) == (60, 1, 15, 3)
    nchw = legacy.TensorDescriptor((2, 3, 4, 5))
    assert nchw.dims == (2, 3, 4, 5)
    assert nchw.strides == (60, 20, 5, 1)
    assert (nchw.rank, nchw.nbytes, nhwc.nbytes) == (4, 480, 240)
    deep = legacy.TensorDescriptor((2, 4, 5, 6, 3), format="nhwc")
    assert deep.dims == (2, 4, 5, 6, 3)
    assert c.cudnnGetTensorNdDescriptor(deep.address, 8).dimA == [2, 3, 4, 5, 6]


@pytest.mark.feature("F044")
@pytest.mark.parametrize(
    ("data_type", "layout"),
    [("float64", "d"), ("float32", "f"), ("float16", "f"), ("bfloat16", "f"), ("int8", "f"), ("int32", "i")],
)
def test_a_value_to_set_is_packed_as_cudnn_reads_it(data_type: str, layout: str) -> None:
    desc = legacy.TensorDescriptor((1, 2, 3, 4), data_type=data_type)
    packed = bytes(c.library.element_of_tensor(desc.address, 3))
    assert packed == struct.pack(f"<{layout}", 3).ljust(8, b"\0")


@pytest.mark.feature("F017")
def test_strided_tensors() -> None:
    strided = legacy.TensorDescriptor((2, 3, 4, 5), format=None, strides=(100, 25, 6, 1))
    assert strided.get() == ((2, 3, 4, 5), c.CUDNN_DATA_FLOAT, None, (100, 25, 6, 1))
    assert strided.nbytes == 4 * (100 + 2 * 25 + 3 * 6 + 4 + 1)
    assert legacy.TensorDescriptor((2, 3, 4), format=None).strides == (12, 4, 1)
    padded = legacy.TensorDescriptor((2, 4, 5, 3), format="nhwc", strides=(200, 40, 8, 1))
    assert padded.strides == (200, 40, 8, 1)
    assert c.cudnnGetTensorNdDescriptor(padded.address, 8).strideA == [200, 1, 40, 8]
    with pytest.raises(ValueError, match="differ in length"):
        legacy.TensorDescriptor((2, 3, 4), format=None, strides=(1, 2))


@pytest.mark.feature("F019")
@pytest.mark.parametrize(("data_type", "lanes"), [("int8x4", 4), ("uint8x4", 4), ("int8x32", 32)])
def test_vectorised_tensors_and_filters(data_type: str, lanes: int) -> None:
    x = legacy.TensorDescriptor((2, 64, 4, 5), data_type=data_type, format="nchw_vect_c")
    assert x.dims == (2, 64, 4, 5)
    assert x.nbytes == 2 * 64 * 20
    assert x.strides == (64 // lanes * 20, 20, 5, 1)  # in vectors
    if data_type != "uint8x4":
        w = legacy.FilterDescriptor((32, 64, 3, 3), data_type=data_type, format="nchw_vect_c")
        assert (w.dims, w.nbytes) == ((32, 64, 3, 3), 32 * 64 * 9)
    with pytest.raises(CudnnBadParam, match=f"% {lanes}"):
        legacy.TensorDescriptor((2, 65, 4, 5), data_type=data_type, format="nchw_vect_c")
    with pytest.raises(CudnnBadParam):
        legacy.FilterDescriptor((32, 64, 3, 3), data_type="float32", format="nchw_vect_c")
    with pytest.raises(ValueError, match="packed"):
        legacy.TensorDescriptor((2, 64, 4, 5), format="nchw_vect_c", strides=(1, 1, 1, 1))


@pytest.mark.feature("F017", "F011")
def test_descriptors_of_arrays() -> None:
    np = pytest.importorskip("numpy")
    array = np.zeros((2, 3, 4, 6), np.float64)[:, :, :, ::2]
    described = legacy.TensorDescriptor.of(array)
    assert described.get() == ((2, 3, 4, 3), c.CUDNN_DATA_DOUBLE, None, (72, 24, 6, 2))
    assert legacy.TensorDescriptor.of(np.zeros((5, 7), np.int8)).dims == (5, 7, 1, 1)
    last = legacy.TensorDescriptor.of(np.zeros((5, 7), np.float16), format="nhwc")
    assert last.dims == (5, 1, 1, 7)
    assert last.data_type == c.CUDNN_DATA_HALF
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wide = legacy.TensorDescriptor.of(np.zeros((2, 3, 4, 5, 6), ml_dtypes.bfloat16))
    assert wide.get()[:2] == ((2, 3, 4, 5, 6), c.CUDNN_DATA_BFLOAT16)
    assert legacy.TensorDescriptor.of(_Torch()).get() == ((2, 3, 4, 5), 0, None, (60, 1, 15, 3))
    assert legacy.TensorDescriptor.of(_Jax()).strides == (60, 20, 5, 1)


class _Torch:
    shape, dtype = (2, 3, 4, 5), "torch.float32"

    def stride(self) -> tuple[int, ...]:
        return (60, 1, 15, 3)


class _Jax:
    shape, dtype = (2, 3, 4, 5), "float32"


@pytest.mark.feature("F020", "F018")
def test_filters() -> None:
    nhwc = legacy.FilterDescriptor((8, 5, 6, 3), data_type="bfloat16", format="nhwc")
    assert nhwc.get() == ((8, 5, 6, 3), c.CUDNN_DATA_BFLOAT16, c.CUDNN_TENSOR_NHWC)
    assert c.cudnnGetFilter4dDescriptor(nhwc.address)[2:] == (8, 3, 5, 6)
    assert nhwc.nbytes == 8 * 3 * 30 * 2
    assert nhwc.tensor() == legacy.TensorDescriptor((8, 5, 6, 3), data_type="bfloat16", format="nhwc")
    assert nhwc.tensor().nbytes == nhwc.nbytes


@pytest.mark.feature("F020")
def test_convolution_reads_back_all_of_its_settings() -> None:
    made = MAKERS["convolution"]()
    settings = made.get()
    assert settings.pad == (1, 2)
    assert settings.stride == (2, 1)
    assert settings.dilation == (1, 3)
    assert settings.groups == 2
    assert settings.mode is c.CUDNN_CONVOLUTION
    assert settings.compute_type is c.CUDNN_DATA_DOUBLE
    assert settings.math_type is c.CUDNN_FMA_MATH
    assert settings.reorder is c.CUDNN_NO_REORDER
    other = made.replace(groups=1, math_type="tensor_op")
    assert other.get() == settings._replace(groups=1, math_type=c.CUDNN_TENSOR_OP_MATH)
    default = legacy.Convolution().get()
    assert default[:5] == ((0, 0), (1, 1), (1, 1), 1, c.CUDNN_CROSS_CORRELATION)
    assert MAKERS["convolution 3d"]().get()[:3] == ((1, 1, 1), (2, 2, 2), (1, 1, 1))
    assert legacy.Convolution(pad=(1,)).get().stride == (1,)


@pytest.mark.feature("F021", "F022", "F026", "F027", "F028")
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("deconvolution", {"pad": (1, 1), "stride": (2, 2), "dilation": (1, 2), "groups": 1}),
        ("activation", {"mode": c.CUDNN_ACTIVATION_CLIPPED_RELU, "coef": 6.0, "nan": c.CUDNN_PROPAGATE_NAN}),
        (
            "pooling",
            {
                "mode": c.CUDNN_POOLING_MAX_DETERMINISTIC,
                "window": (3, 2),
                "pad": (1, 0),
                "stride": (2, 1),
                "nan": c.CUDNN_NOT_PROPAGATE_NAN,
            },
        ),
        ("pooling 3d", {"window": (2, 2, 2), "pad": (0, 0, 0), "stride": (2, 2, 2)}),
        ("softmax", {"algorithm": c.CUDNN_SOFTMAX_LOG, "mode": c.CUDNN_SOFTMAX_MODE_INSTANCE}),
        ("batch norm", {"mode": c.CUDNN_BATCHNORM_PER_ACTIVATION}),
        ("batch norm ex", {"ops": c.CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION}),
        ("normalization", {"ops": c.CUDNN_NORM_OPS_NORM_ACTIVATION, "algorithm": c.CUDNN_NORM_ALGO_PERSIST}),
        ("lrn", {"n": 7, "alpha": 0.5, "beta": 0.25, "k": 1.0}),
        ("op tensor", {"op": c.CUDNN_OP_TENSOR_MAX, "compute_type": c.CUDNN_DATA_DOUBLE}),
        (
            "reduce",
            {
                "op": c.CUDNN_REDUCE_TENSOR_AMAX,
                "indices": c.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES,
                "indices_type": c.CUDNN_32BIT_INDICES,
            },
        ),
        (
            "transform",
            {
                "format": c.CUDNN_TENSOR_NHWC,
                "pad_before": (0, 0, 1, 2),
                "pad_after": (0, 0, 3, 0),
                "fold": (2, 3),
                "direction": c.CUDNN_TRANSFORM_FOLD,
            },
        ),
        ("transform 5d", {"pad_before": (0,) * 5, "fold": (1, 2, 3), "direction": c.CUDNN_TRANSFORM_UNFOLD}),
        ("spatial transformer", {"dims": (2, 3, 4, 5), "data_type": c.CUDNN_DATA_DOUBLE}),
        (
            "ctc",
            {
                "normalization": c.CUDNN_LOSS_NORMALIZATION_NONE,
                "gradient": c.CUDNN_CTC_SKIP_OOB_GRADIENTS,
                "max_label_length": 17,
            },
        ),
    ],
)
def test_settings_are_read_back(kind: str, wanted: dict[str, Any]) -> None:
    settings = MAKERS[kind]().get()._asdict()
    assert {name: settings[name] for name in wanted} == wanted


@pytest.mark.feature("F022")
@pytest.mark.parametrize("mode", legacy.members(legacy.ActivationMode))
def test_every_activation_mode(mode: str) -> None:
    made = legacy.Activation(mode, coef=0.5, swish_beta=2.0)
    assert made.get() == (legacy.flag(legacy.ActivationMode, mode), 0.5, c.CUDNN_NOT_PROPAGATE_NAN, 2.0)
    assert legacy.short(made.get().mode) == mode


@pytest.mark.feature("F022")
def test_default_coefficients() -> None:
    assert legacy.Activation("elu").get().coef == 1.0
    assert legacy.Activation("relu").get().coef == 0.0
    with pytest.raises(ValueError, match="clipped_relu' needs coef"):
        legacy.Activation("clipped_relu")


@pytest.mark.feature("F026")
@pytest.mark.parametrize("op", legacy.members(legacy.ReduceOp))
def test_every_reduction(op: str) -> None:
    assert legacy.short(legacy.ReduceTensor(op).get().op) == op


# ------------------------------------------------------------------------------------------------------- text
@pytest.mark.feature("F008")
@pytest.mark.parametrize("kind", MAKERS)
def test_the_repr_is_the_constructor_call(kind: str) -> None:
    made = MAKERS[kind]()
    text = repr(made)
    assert text.startswith(type(made).__name__ + "(")
    if isinstance(made, legacy.Dropout):
        assert text == "Dropout()"
        return
    again = eval(text, vars(legacy))
    assert again == made
    assert hash(again) == hash(made)
    assert repr(again) == text
    assert again.address != made.address or made.address == 0


@pytest.mark.feature("F008")
def test_descriptors_of_one_kind_are_compared_by_their_settings() -> None:
    one = legacy.TensorDescriptor((2, 3, 4, 5))
    assert one == legacy.TensorDescriptor((2, 3, 4, 5), strides=(60, 20, 5, 1))
    assert one != legacy.TensorDescriptor((2, 3, 4, 5), data_type="float64")
    assert one != legacy.TensorDescriptor((2, 3, 5, 4))
    assert one != legacy.TensorDescriptor((2, 4, 5, 3), format="nhwc")
    assert one != legacy.FilterDescriptor((2, 3, 4, 5))
    assert legacy.Convolution() != legacy.Deconvolution()
    gone = legacy.TensorDescriptor((2, 3, 4, 5))
    gone.close()
    assert one != gone
    assert gone == gone


@pytest.mark.feature("F008")
@pytest.mark.parametrize("kind", flags.PREFIXES, ids=lambda kind: kind.__name__)
def test_every_flag_answers_to_its_names(kind: Any) -> None:
    for name, member in kind.__members__.items():
        brief = legacy.short(member)
        assert brief
        for said in (member, int(member), name, name.lower(), brief, brief.upper()):
            assert legacy.flag(kind, said) is member
    assert len(legacy.members(kind)) == len({m for m in kind if not m.name.endswith("_COUNT")})
    with pytest.raises(ValueError, match="no 'nonsense'; there are"):
        legacy.flag(kind, "nonsense")
    with pytest.raises(TypeError, match="is wanted, got 1.5"):
        legacy.flag(kind, 1.5)  # type: ignore[type-var]


def test_a_flag_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cudnnPoolingMode_t.*CUDNN_SOFTMAX_LOG"):
        legacy.flag(legacy.PoolingMode, legacy.SoftmaxAlgorithm.CUDNN_SOFTMAX_LOG)


# ------------------------------------------------------------------------------------------------------ errors
@pytest.mark.feature("F004", "F005")
@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: legacy.TensorDescriptor((2,)), CudnnBadParam, "nbDims < 2"),
        (lambda: legacy.TensorDescriptor((1,) * 9), CudnnNotSupported, "nbDims=9"),
        (lambda: legacy.TensorDescriptor((2, -3, 4, 5)), CudnnBadParam, r"dimA=\(2, -3, 4, 5\)"),
        (lambda: legacy.TensorDescriptor((2, 3, 4, 5), data_type="float8"), ValueError, "no 'float8'"),
        (lambda: legacy.TensorDescriptor((2, 3, 4, 5), data_type="int64"), CudnnBadParam, "INT64"),
        (lambda: legacy.FilterDescriptor((2, 3)), CudnnBadParam, "nbDims <= 2"),
        (lambda: legacy.Convolution(pad=-1), CudnnBadParam, "padA"),
        (lambda: legacy.Convolution(stride=0), CudnnBadParam, "strideA"),
        (lambda: legacy.Convolution(dilation=0), CudnnBadParam, "dilationA"),
        (lambda: legacy.Convolution(groups=0), CudnnBadParam, "groupCount < 1"),
        (lambda: legacy.Convolution(compute_type="int8"), CudnnBadParam, "dataType"),
        (lambda: legacy.Convolution(pad=(1, 2), stride=(1, 2, 3)), ValueError, "stride.*has 3 entries"),
        (lambda: legacy.Pooling("mean", window=2), ValueError, "no 'mean'; there are max, average_count"),
        (lambda: legacy.Pooling(99, window=2), CudnnBadParam, "mode"),
        (lambda: legacy.LRN(n=0), CudnnBadParam, "n < 1"),
        (lambda: legacy.LRN(n=17), CudnnBadParam, "n > 16"),
        (lambda: legacy.LRN(beta=0.001), CudnnBadParam, "beta < 0.01"),
        (lambda: legacy.LRN(k=1e-6), CudnnBadParam, "k < 1e-5"),
        (lambda: legacy.OpTensor("add", compute_type="int32"), CudnnBadParam, "opTensorCompType"),
        (lambda: legacy.ReduceTensor("add", compute_type="int32"), CudnnBadParam, "CompType"),
        (lambda: legacy.SpatialTransformer((1, 2, 3, 4), data_type="bfloat16"), CudnnBadParam, "BFLOAT16"),
        (lambda: legacy.TensorTransform(fold=(2, 2), pad_before=(1, 1)), ValueError, "must have"),
        (lambda: legacy.TensorTransform(rank=9), CudnnError, "nbDims"),
        (lambda: legacy.Normalization(groups=2).derive(_x()), CudnnNotSupported, "groupCnt=2"),
    ],
)
def test_what_is_refused_says_why(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def _x() -> legacy.TensorDescriptor:
    return legacy.TensorDescriptor((2, 4, 5, 6))


@pytest.mark.feature("F007")
def test_operations_without_a_handle_reach_the_library_and_come_back_typed() -> None:
    x, w = _x(), legacy.FilterDescriptor((3, 4, 3, 3))
    convolution = legacy.Convolution()
    y = convolution.output(x, w)
    with pytest.raises(CudnnBadParam, match="cudnnConvolutionForward"):
        convolution.forward(None, x_desc=x, x=4096, w_desc=w, w=8192, y_desc=y, y=12288, workspace=(4096, 64))
    with pytest.raises(CudnnBadParam, match="cudnnPoolingForward"):
        legacy.Pooling(window=2).forward(None, x_desc=x, x=4096, y_desc=y, y=8192)
    with pytest.raises(CudnnBadParam, match="handle"):
        legacy.Dropout.states_size(None)
    assert not x.closed


# ---------------------------------------------------------------------------------------------------- lifetime
@pytest.mark.feature("F029")
@pytest.mark.parametrize("kind", MAKERS)
def test_close_is_idempotent_and_use_after_it_names_the_class(kind: str) -> None:
    made = MAKERS[kind]()
    assert not made.closed
    made.close()
    made.close()
    assert made.closed
    name = type(made).__name__
    assert repr(made) == f"{name}(closed)"
    for use in (made.get, lambda: made.address, lambda: made.native):
        with pytest.raises(legacy.ClosedError, match=f"this {name} was closed"):
            use()
    with MAKERS[kind]() as other:
        assert other.address >= 0
    assert other.closed
    assert issubclass(legacy.ClosedError, ValueError)


@pytest.mark.feature("F029")
def test_a_closed_object_is_refused_as_an_argument() -> None:
    x, w = _x(), legacy.FilterDescriptor((3, 4, 3, 3))
    x.close()
    with pytest.raises(legacy.ClosedError, match="this TensorDescriptor was closed"):
        legacy.Convolution().output_dims(x, w)
    activation = legacy.Activation()
    activation.close()
    with pytest.raises(legacy.ClosedError, match="this Activation was closed"):
        activation.forward(None, x_desc=_x(), x=1, y_desc=_x(), y=2)


@pytest.mark.feature("F029")
def test_objects_close_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        x, w = _x(), legacy.FilterDescriptor((3, 4, 3, 3))
        convolution = legacy.Convolution()
        y = convolution.output(x, w)
        objects = [x, w, convolution, y]
        for place in order:
            objects[place].close()
        assert all(one.closed for one in objects)


@pytest.mark.feature("F029")
def test_a_descriptor_outlives_its_close_while_a_call_uses_it() -> None:
    """Closed by another thread in the middle of a call, the C descriptor stays until the call is over."""
    made = _x()
    entered, proceed = threading.Event(), threading.Event()
    seen: list[Any] = []

    def slow(address: int) -> None:
        entered.set()
        assert proceed.wait(10)
        seen.append(c.cudnnGetTensorNdDescriptor(address, 8).dimA)

    thread = threading.Thread(target=base.call, args=(slow, made))
    thread.start()
    assert entered.wait(10)
    native = made.native
    made.close()
    gc.collect()
    assert native.address
    del native
    proceed.set()
    thread.join()
    assert seen == [[2, 4, 5, 6]]


_ENDS = """
import gc, random, sys
from lamina.cudnn import legacy
from tests.helpers.legacy.makers import MAKERS
left = [make() for make in MAKERS.values() for _ in range(20)]
random.Random(0).shuffle(left)
for one in left[::3]:
    one.close()
left[1].again = left  # a cycle that only the collector finds
del left[::7]
gc.collect()
print("alive", len(left))
"""


@pytest.mark.feature("F029")
def test_a_process_ends_well_with_objects_alive() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-X", "faulthandler", "-c", _ENDS]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("alive")


@pytest.mark.feature("F029")
def test_threads_make_read_and_close_their_own_objects() -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        for i in range(300):
            dims = (1 + seed, 2 + i % 7, 3, 4)
            with legacy.TensorDescriptor(dims, format=("nchw", "nhwc")[i % 2]) as made:
                if made.dims != dims:
                    wrong.append(repr(made))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: legacy.TensorDescriptor("abc"), "dims must be a sequence of whole numbers, got 'abc'"),
        (lambda: legacy.TensorDescriptor(5), "dims must be a sequence of whole numbers, got 5"),
        (lambda: legacy.TensorDescriptor((2, 3.7)), r"dims must be a sequence of whole numbers, got \(2, 3.7\)"),
        (lambda: legacy.TensorDescriptor((2, 3), strides=(3, 1.5)), "strides must be a sequence of whole"),
        (lambda: legacy.Convolution(pad=1.5), "pad must be a sequence of whole numbers, got 1.5"),
        (lambda: legacy.Convolution(pad="1"), "pad must be a sequence of whole numbers, got '1'"),
        (lambda: legacy.Pooling(window=2, stride=0.5), "stride must be a sequence of whole numbers, got 0.5"),
        (
            lambda: legacy.RNNData(max_length=3, batch=2, vector_size=4, lengths=(3, 1.5)),
            r"lengths must be a sequence of whole numbers, got \(3, 1.5\)",
        ),
    ],
)  # fmt: skip
def test_numbers_that_are_not_whole_are_refused_by_name(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_numbers_and_types_of_numpy_and_lamina_are_taken() -> None:
    assert legacy.Convolution(pad=np.int64(2)).get().pad == (2, 2)
    for kind in (np.float16, np.dtype("float16"), lamina.float16):
        assert legacy.TensorDescriptor((2, 3), data_type=kind).data_type == c.CUDNN_DATA_HALF  # type: ignore[arg-type]
