"""Plans of convolutions that need no library."""

from collections.abc import Sequence

import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.conv import conv
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.launch.program import Fill, target
from lamina.ops.core import Op
from lamina.ops.primitives import Add, Conv, ConvDataGrad, ConvFilterGrad, Fused, ReluGrad, Silu, Window
from lamina.spec import DType, Layout, Policy, Shape, Spec, bfloat16, channels_last, float32
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.planned import H200

_WINDOW = Window((1, 1), ((0, 0), (0, 0)), (1, 1))


@pytest.mark.parametrize(
    ("op", "shapes", "nbytes"),
    [
        (ConvFilterGrad(_WINDOW, (3, 3)), ((0, 3, 8, 8), (0, 4, 6, 6)), 4 * 4 * 3 * 9),
        (ConvDataGrad(_WINDOW, (8, 8)), ((2, 0, 6, 6), (0, 3, 3, 3)), 4 * 2 * 3 * 64),
        (Conv(_WINDOW), ((0, 3, 8, 8), (4, 3, 3, 3)), None),
    ],
    ids=str,
)
def test_sums_of_nothing_are_zeros(op: Op, shapes: tuple[Shape, ...], nbytes: int | None) -> None:
    """And where there is no result, nothing is done."""
    plan = backend(H200).plan(op, [Spec(s, float32) for s in shapes], Policy())
    assert list(plan.make.steps) == ([] if nbytes is None else [Fill(target(), 0, nbytes)])


@pytest.mark.feature("B010")
@pytest.mark.parametrize("steps", [(ReluGrad(),), (Add(), ReluGrad())], ids=len)
def test_steps_on_strided_data_gradients_run_behind_them(steps: tuple[Op, ...]) -> None:
    """cuDNN's engines for both are slow where there is a stride."""
    policy = Policy(algorithm="heuristic")
    x = Spec((8, 64, 28, 28), bfloat16, channels_last((8, 64, 28, 28)))
    w = Spec((128, 64, 3, 3), bfloat16, channels_last((128, 64, 3, 3)))
    epilogue = Epilogue(steps, (x,) * len(steps), 2)
    for stride in (1, 2):
        window, size = Window((stride, stride), ((1, 1), (1, 1)), (1, 1)), 28 // stride
        dy = Spec((8, 128, size, size), bfloat16, channels_last((8, 128, size, size)))
        o = Operands(window, x, w, dy)
        assert conv._runs_apart(ConvDataGrad, o, epilogue, H200, policy) == (stride == 2)
    op = Fused((ConvDataGrad(window, (28, 28)), *steps))
    plan = backend(H200).plan(op, [dy, w, *[x] * len(steps)], policy)
    assert plan.label.endswith(" split")


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@pytest.mark.parametrize(("images", "channels", "filters"), [(2, 8, 0), (2, 0, 8), (0, 8, 8), (2, 0, 0)])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (2, 2), (3, 1), (3, 2)])
def test_nothing_is_convolved_with_nothing(
    images: int, channels: int, filters: int, size: int, stride: int, dtype: DType
) -> None:
    """Zeros, or no elements at all, in all three directions."""
    window = Window((stride, stride), ((size // 2, size // 2),) * 2, (1, 1), 1)
    x, w = Spec((images, channels, 8, 8), dtype), Spec((filters, channels, size, size), dtype)
    (y,) = Conv(window).infer(x, w)
    cuda = backend(H200)
    assert cuda.plan(Conv(window), [x, w], Policy()).outputs[0].shape == y.shape
    assert cuda.plan(ConvDataGrad(window, (8, 8)), [y, w], Policy()).outputs[0].shape == x.shape
    assert cuda.plan(ConvFilterGrad(window, (size, size)), [x, y], Policy()).outputs[0].shape == w.shape


def part(shape: Shape, channels: int, dtype: DType = bfloat16) -> Spec:
    """Some of the channels of images, channels last."""
    _, _, h, w = shape
    return Spec(shape, dtype, Layout((h * w * channels, 1, w * channels, channels)))


def is_read_in_place(op: Op, specs: Sequence[Spec]) -> bool:
    plan = backend(H200).plan(op, list(specs), Policy(algorithm="heuristic"))
    return plan.inputs[0].same_memory(specs[0])


def test_parts_of_images_are_read_where_they_lie_by_kernels_for_each_channel() -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), 32)
    x, w, y = part((4, 32, 14, 14), 64), Spec((32, 1, 3, 3), bfloat16), Spec((4, 32, 14, 14), bfloat16)
    assert is_read_in_place(Conv(window), (x, w))
    assert is_read_in_place(Fused((Conv(window), Add(), Silu())), (x, w, Spec((1, 32, 1, 1), bfloat16)))
    assert is_read_in_place(ConvFilterGrad(window, (3, 3)), (x, y))
    assert not is_read_in_place(Conv(window), (part(x.shape, 68), w))  # lines begin between accesses
    assert not is_read_in_place(Conv(window), (part(x.shape, 64, float32), Spec(w.shape, float32)))
    assert not is_read_in_place(ConvDataGrad(window, (14, 14)), (x, w))


@needs_cudnn
def test_convolutions_over_channels_ask_for_dense_images() -> None:
    window, w = Window((1, 1), ((1, 1), (1, 1)), (1, 1)), Spec((64, 64, 3, 3), bfloat16)
    assert not is_read_in_place(Conv(window), (part((8, 64, 28, 28), 128), w))
