"""The CUDA backend without a GPU: every op has a plan, every kernel compiles for the GPUs it is meant for."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from lamina.backends import Call, NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.transforms import padded, pads, space_to_depth, takes_space_to_depth
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.indexing import collapse, memory_order, offset_of
from lamina.backends.cuda.launch.program import (
    KERNELS,
    Launches,
    Program,
)
from lamina.backends.cuda.matmul.matmul import as_convolution, matmul_problem
from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives import (
    Add,
    Cast,
    Conv,
    Matmul,
    Relu,
    Reshape,
    SgdUpdate,
    Transpose,
    Where,
    Window,
)
from lamina.ops.primitives.conv import ConvDataGrad, ConvFilterGrad
from lamina.runtime import CompileError
from lamina.spec import (
    Layout,
    Policy,
    Spec,
    bfloat16,
    bool_,
    channels_last,
    contiguous,
    float32,
    int64,
)
from tests.helpers import slow_from
from tests.helpers.own_programs import OWN, cases, collected, hasty_cubin
from tests.helpers.planned import H200, KINDS

pytest.importorskip("cuda.core")
CUDA = backend(H200)


@pytest.mark.feature("B017")
def test_every_op_has_a_kernel() -> None:
    own = {
        n: op for n, op in REGISTRY.items() if op.__module__.startswith(("lamina.ops.", "lamina.backends."))
    }
    sources = {name: CUDA.supports(op_class) for name, op_class in own.items()}
    assert {
        n: source for n, source in sources.items() if source not in ("cudnn", "kernel", "nccl", "view")
    } == {}


@pytest.mark.parametrize("name", OWN)
def test_plans_say_what_infer_says(name: str) -> None:
    """Shapes and dtypes as the op has them, and every layout named."""
    for op, specs in cases(name):
        plan = CUDA.plan(op, specs, Policy())
        assert [s.open for s in plan.outputs] == [s.open for s in op.infer(*specs)], str(op)
        assert [s.open for s in plan.inputs] == [s.open for s in specs], str(op)
        assert all(s.layout is not None for s in (*plan.inputs, *plan.outputs)), str(op)
        for o, i in plan.aliases.items():
            assert plan.outputs[o].same_memory(plan.inputs[i]), (
                f"{op}: output {o} cannot lie where input {i} lies"
            )


def kernel_functions() -> set[str]:
    """All that are written in kernel files."""
    kernel = re.compile(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")
    return {name for file in KERNELS.rglob("*.cu") for name in kernel.findall(file.read_text())}


def compiled(
    cubin: Callable[[Program, str], bytes], programs: Iterable[Program], target: str
) -> Iterator[bytes]:
    """Machine code of each, made in two threads."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda program: cubin(program, target), programs)


@pytest.mark.feature("F040")
def test_every_kind_of_kernel_compiles() -> None:
    """For an H200: each function of each kernel file optimized, its versions for other types just compiled."""
    found = collected(H200)
    written = kernel_functions()
    assert len(written) >= 25
    assert written - {p.name for p in found.values()} == set()
    one = {p.name: p for p in found.values()}
    others = [p for p in list(found.values())[:: max(1, len(found) // 130)] if p is not one[p.name]]
    target = H200.machine.target
    for made in chain(compiled(Program.cubin, one.values(), target), compiled(hasty_cubin, others, target)):
        assert made[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "line",
    ["undefined = 1;", 'asm("nonsense;");', "__shared__ int x[1 << 20]; x[p[0]] = p[1]; p[2] = x[p[3]];"],
)
def test_what_does_not_compile_shows_without_optimization_too(line: str) -> None:
    program = Program("wrong", text=f'extern "C" __global__ void wrong(volatile int *p) {{ {line} }}')
    for cubin in (hasty_cubin, Program.cubin):
        with pytest.raises(CompileError, match="wrong"):
            cubin(program, "sm_90")


@pytest.mark.feature("F040", "B053")
@pytest.mark.parametrize("name", slow_from(2, [n for n in KINDS if n != "h200"]))
def test_kernels_compile_for_other_gpus(name: str) -> None:
    """Planned for each machine that there is a file of: every kernel function, once for each architecture.

    Code of optimized steps and networks for each is in test_backend.py and test_depthwise_rows.py.
    """
    device = KINDS[name]
    found = {p.name: p for p in collected(device, few=True).values()}
    assert kernel_functions() - set(found) == set()
    for made in compiled(hasty_cubin, found.values(), device.machine.target):
        assert made[:4] == b"\x7fELF"


def test_formulations_where_they_apply() -> None:
    def operands(x: tuple[int, ...], w: tuple[int, ...], stride: int, dtype: object = bfloat16) -> Operands:
        win = Window((stride, stride), ((0, 0), (0, 0)), (1, 1))
        y = (x[0], w[0], *win.output(x[2:], w[2:]))
        arrange = contiguous if dtype == float32 else channels_last
        return Operands(win, *(Spec(s, dtype, arrange(s)) for s in (x, w, y)))  # type: ignore[arg-type]

    first = operands((1024, 1, 224, 224), (96, 1, 11, 11), 4)
    assert takes_space_to_depth(first)
    assert pads(first)
    deep = space_to_depth(first)
    assert deep.deep.x.shape == (1024, 16, 56, 56)
    assert deep.deep.w.shape == (96, 16, 3, 3)
    assert padded(first).deep.x.shape == (1024, 8, 224, 224)
    names = ["stem", "deep", "padded", "plain", "relaid", "wide", "direct"]
    assert [w.name for w in conv_problem(Conv, first, H200).formulations] == names
    assert [w.name for w in conv_problem(ConvDataGrad, first, H200).formulations] == [
        "padded",
        "plain",
        "relaid",
        "wide",
        "direct",
    ]
    second = operands((128, 96, 26, 26), (256, 96, 5, 5), 1)
    assert [w.name for w in conv_problem(Conv, second, H200).formulations] == [
        "plain",
        "turned",
        "relaid",
        "wide",
        "direct",
    ]
    tap = operands((128, 64, 28, 28), (256, 64, 1, 1), 1)
    assert [w.name for w in conv_problem(Conv, tap, H200).formulations] == [
        "plain",
        "product",
        "relaid",
        "wide",
        "direct",
    ]
    wide = operands(
        (8, 16, 32, 32), (32, 16, 3, 3), 2
    )  # 64 deep channels: worth timing, but not the first choice
    assert [w.name for w in conv_problem(Conv, wide, H200).formulations] == [
        "plain",
        "deep",
        "relaid",
        "wide",
        "direct",
    ]
    exact = operands((8, 1, 32, 32), (32, 1, 5, 5), 2, float32)  # row-major: no deep channels
    assert [w.name for w in conv_problem(Conv, exact, H200).formulations] == ["plain", "relaid", "direct"]


def test_products_as_convolutions() -> None:
    """The direction follows from how the operands lie; images, channels and filters fit the product."""
    expected = {
        (False, True): (Conv, (5, 7), (3, 7), (5, 3)),
        (False, False): (ConvDataGrad, (5, 3), (7, 3), (5, 7)),
        (True, False): (ConvFilterGrad, (7, 3), (5, 3), (7, 5)),
        (True, True): (ConvDataGrad, (3, 5), (7, 5), (3, 7)),
    }
    for transposed, (direction, x, w, y) in expected.items():
        found, o, _ = as_convolution(Product(1, 5, 3, 7, *transposed), float32)
        assert found == direction
        assert (o.x.shape[:2], o.w.shape[:2], o.y.shape[:2]) == (x, w, y)
    a, b, c = (Spec(s, bfloat16).fixed for s in ((4, 5, 7), (4, 7, 3), (4, 5, 3)))
    batched = matmul_problem(Product(4, 5, 3, 7, False, False), a, b, c, NONE, Policy())
    assert [w.name for w in batched.formulations] == ["small", "matmul", "tiled"]


def test_transposed_views_cost_nothing() -> None:
    x = Spec((3, 5), float32).fixed
    plan = CUDA.plan(Transpose((1, 0)), [x], Policy())
    assert plan.view
    assert plan.outputs[0].layout == Layout((1, 5))
    assert CUDA.plan(Reshape((15,)), [x], Policy()).view


def test_elementwise_results_lie_as_their_operands() -> None:
    shape = (2, 8, 5, 7)
    last = Spec(shape, bfloat16, channels_last(shape))
    plan = CUDA.plan(Add(), [last, Spec((1, 8, 1, 1), bfloat16)], Policy())
    assert plan.outputs[0].layout == last.layout
    assert plan.aliases == {0: 0}
    other = CUDA.plan(Add(), [last, Spec(shape, bfloat16).fixed], Policy())
    assert other.inputs[1].layout == last.layout  # worth a tiled reorder
    small = CUDA.plan(Add(), [Spec((8, 1, 1), bfloat16), last], Policy())
    assert small.outputs[0].layout == last.layout
    assert small.aliases == {}


def test_open_weights_are_cast_to_the_layout_that_convolutions_read() -> None:
    """Then neither they nor their gradients need a reorder in half-precision training."""
    shape = (8, 4, 3, 3)
    plan = CUDA.plan(Cast(bfloat16), [Spec(shape, float32)], Policy())
    assert plan.inputs[0].layout == plan.outputs[0].layout == channels_last(shape)
    named = CUDA.plan(Cast(bfloat16), [Spec(shape, float32).fixed], Policy())
    assert named.outputs[0].layout == contiguous(shape)
    chosen = CUDA.plan(Where(), [Spec((), bool_), Spec(shape, float32), Spec(shape, float32)], Policy())
    assert chosen.aliases == {0: 2}


def test_index_arithmetic() -> None:
    """What the generated C computes, in Python, against the definition."""
    shape, strides = (3, 4, 5, 6), (120, 1, 24, 4)
    space = collapse(shape, [strides, contiguous(shape).strides], memory_order(shape, strides))
    assert space.sizes == (3, 30, 4)
    for index in range(360):
        n, rest = divmod(index, 120)
        hw, c = divmod(rest, 4)
        h, w = divmod(hw, 6)
        assert offset_of(space, 0, index) == index
        assert offset_of(space, 1, index) == n * 120 + c * 30 + h * 6 + w
    assert collapse((1, 1), [(7, 7)], (0, 1)).sizes == (1,)
    assert collapse((4, 6), [(6, 1), (0, 0)], (0, 1)).sizes == (24,)


def test_empty_tensors_launch_nothing() -> None:
    for op, specs in (
        (Relu(), [Spec((0, 3), float32)]),
        (
            Conv(Window((1, 1), ((0, 0), (0, 0)), (1, 1))),
            [Spec((0, 2, 5, 5), float32), Spec((3, 2, 3, 3), float32)],
        ),
        (Matmul(), [Spec((0, 4), float32), Spec((4, 3), float32)]),
        (SgdUpdate(), [*[Spec((0,), float32)] * 3, Spec((), float32)]),
    ):
        plan = CUDA.plan(op, specs, Policy())
        assert isinstance(plan.make, Launches)
        assert plan.make.steps == ()
        plan.bind(Call((0,) * len(specs), (0,) * len(plan.outputs)))()


def test_refusals_name_op_and_specs() -> None:
    class Unknown(Op):
        """Not in the table."""

    del REGISTRY["unknown"]
    with pytest.raises(NoKernel, match=r"cuda has no kernel for unknown \(i64\[2\]\)"):
        CUDA.plan(Unknown(), [Spec((2,), int64)], Policy())
