"""The CUDA backend without a GPU: every card has a plan, every kernel compiles for the GPUs it is meant for."""

import re
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from lamina.backends import Call, NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.attention.attention import slopes_launch, weights_launch
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.direct import direct
from lamina.backends.cuda.conv.fast_fir import halved_way
from lamina.backends.cuda.conv.transforms import deepened, deepens, padded, pads
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.indexing import collapse, memory_order, offset_of
from lamina.backends.cuda.launch.program import (
    KERNELS,
    Launch,
    Launches,
    Program,
    Together,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.matmul.matmul import as_convolution, matmul_problem, tiled
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.conv1x1_stats import Behind, ProductTiling, data_grad, forward
from lamina.backends.cuda.norm.layer_norm_backward import ShortRows
from lamina.backends.cuda.norm.norm import activation
from lamina.backends.cuda.quantize.quantize import eights_problem
from lamina.backends.cuda.rnn import persistent
from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives import (
    Add,
    Attention,
    AttentionGrad,
    BatchNorm,
    BatchNormGrad,
    Cast,
    Conv,
    Matmul,
    MaxPool,
    QuantizedConv,
    Relu,
    Reshape,
    SgdUpdate,
    Transpose,
    Where,
    Window,
)
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes
from lamina.spec import (
    Layout,
    Policy,
    Spec,
    bfloat16,
    bool_,
    channels_last,
    contiguous,
    float8_e4m3fn,
    float16,
    float32,
    float64,
    int8,
    int64,
    uint8,
)
from tests.helpers.planned import H200

pytest.importorskip("cuda.core")
CUDA = backend(H200)
#: Their plans need cuDNN.
LIBRARY = {
    "conv", "conv_data_grad", "conv_filter_grad", "matmul", "fused", "rnn", "rnn_grad", "attention", "attention_grad",
    "joint_attention", "joint_attention_grad", "conv_norm", "data_grad_norm",
    "quantized_conv", "quantized_matmul",
}  # fmt: skip
OWN = sorted(set(REGISTRY) - LIBRARY)


def cases(name: str) -> Iterator[tuple[Op, list[Spec]]]:
    """Every sample in every dtype, row-major and channels last, and with layouts left open."""
    card = REGISTRY[name]
    for sample in card.samples():
        for dtype in sample.dtypes or card.dtypes:
            shapes = [Spec(a.shape, a.dtype or dtype) for a in sample.args]
            yield sample.op, shapes
            yield sample.op, [s.fixed for s in shapes]
            yield sample.op, [Spec(s.shape, s.dtype, channels_last(s.shape)) for s in shapes]


def programs(plan: Plan) -> tuple[Program, ...]:
    if not isinstance(plan.make, Launches):
        return ()
    return (*plan.make.programs, *plan.make.plain_programs)


@pytest.mark.feature("B017")
def test_every_card_has_a_kernel() -> None:
    assert [name for name, card in REGISTRY.items() if not CUDA.supports(card)] == []
    assert all(CUDA.supports(card) in ("cudnn", "kernel", "view") for card in REGISTRY.values())


@pytest.mark.parametrize("name", OWN)
def test_plans_say_what_infer_says(name: str) -> None:
    """Shapes and dtypes as the card has them, and every layout named."""
    for op, specs in cases(name):
        plan = CUDA.plan(op, specs, Policy())
        assert [s.open for s in plan.outputs] == [s.open for s in op.infer(*specs)], str(op)
        assert [s.open for s in plan.inputs] == [s.open for s in specs], str(op)
        assert all(s.layout is not None for s in (*plan.inputs, *plan.outputs)), str(op)
        for o, i in plan.aliases.items():
            assert plan.outputs[o].same_memory(plan.inputs[i]), (
                f"{op}: output {o} cannot lie where input {i} lies"
            )


def chosen() -> dict[str, Program]:
    """A program of each kind: by kernel, and by what its text defines (types and switches, not sizes)."""
    found: dict[str, Program] = {}
    for name in OWN:
        for op, specs in cases(name):
            for program in programs(CUDA.plan(op, specs, Policy())):
                kinds = [s.dtype.short for s in specs] + [
                    line for line in program.text.split("\n") if "typedef" in line
                ]
                key = f"{name if program.name == 'elementwise' else program.name} {' '.join(kinds)}"
                found.setdefault(key, program)
    win = Window((2, 2), ((1, 1), (1, 1)), (1, 1))
    for dtype in (float64, float32, float16, bfloat16):
        specs = ((2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 5, 5))
        o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in specs))
        for direction in ("conv", "conv_data_grad", "conv_filter_grad"):
            found[f"{direction} {dtype}"] = direct(direction, o).program
            for way in conv_problem(direction, o, H200).ways:
                for step in (*way.before, *way.after):
                    if isinstance(step, Launch):
                        found[f"{direction} {way.name} {step.program.name} {dtype}"] = step.program
        a = Spec((5, 7), dtype).fixed
        found[f"tiled {dtype}"] = tiled(Product(1, 5, 3, 7, False, True), a).program
        scores = Spec((2, 3, 5, 7), dtype).fixed
        launch = weights_launch(Attention(0.5, True, True), scores, [scores], (source(),) * 3)
        found[f"weights {dtype}"] = launch.program
        launch = slopes_launch(AttentionGrad(0.5), scores, 4, [], (source(),) * 7)
        found[f"slopes {dtype}"] = launch.program
        short = ShortRows(Spec((9, 256), dtype).fixed, 9, 256, True, H200.machine)
        for launch in short.gradients((source(),) * 5, target(), scratch(), (target(1), target(2))):
            found[f"{launch.program.name} {dtype}"] = launch.program
    found |= (
        own_convolutions()
        | halved_convolutions()
        | resident_norms()
        | resident_networks()
        | point_convolutions()
    )
    shapes = (2, 3, 9, 9), (5, 3, 3, 3), (2, 5, 7, 7)
    win = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    for kind in (int8, float8_e4m3fn):
        x, w, y = (Spec(s, t, channels_last(s)) for s, t in zip(shapes, (kind, kind, float32), strict=True))
        for step in eights_problem(QuantizedConv(win), x, w, y, NONE).plain:
            assert isinstance(step, Launch)
            found[f"{step.program.name} {kind}"] = step.program
    shape = (2, 37, 9, 11)
    for dtype in (float64, float32, bfloat16, uint8):
        last = Spec(shape, dtype, channels_last(shape))
        found[f"transpose {dtype}"] = programs(CUDA.reorder(last, Spec(shape, dtype)))[0]
        image = Spec((2, 3, 16, 24), dtype)
        last = Spec(image.shape, dtype, channels_last(image.shape))
        found[f"interleave {dtype}"] = programs(CUDA.reorder(image, last))[0]
    return found


def own_convolutions() -> dict[str, Program]:
    """Kernels of convolutions with one filter per channel, and over few channels."""
    depthwise = Window((1, 1), ((1, 1), (1, 1)), (1, 1), 16), ((2, 16, 9, 9), (16, 1, 3, 3), (2, 16, 9, 9))
    stem = Window((2, 2), ((3, 3), (3, 3)), (1, 1)), ((2, 3, 18, 20), (64, 3, 7, 7), (2, 64, 9, 10))
    found = {}
    for win, shapes in (depthwise, stem):
        for dtype in (float16, bfloat16):
            o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in shapes))
            for direction in ("conv", "conv_data_grad", "conv_filter_grad"):
                for way in conv_problem(direction, o, H200).ways:
                    steps = way.steps if way.name in ("depthwise", "stem") else ()
                    for step in (s for s in steps if isinstance(s, Launch)):
                        found[f"{direction} {way.name} {step.program.name} {dtype}"] = step.program
    return found


def halved_convolutions() -> dict[str, Program]:
    """What is around convolutions of half as many taps."""
    shapes = ((2, 8, 18, 20), (16, 8, 7, 7), (2, 16, 18, 20))
    o = Operands(Window((1, 1), ((3, 3), (3, 3)), (1, 1)), *(Spec(s, bfloat16) for s in shapes))
    way = halved_way("conv", o, lambda part: Plan((part.x, part.w), (part.y,), lambda call: lambda: None))
    return {step.program.name: step.program for step in way.steps if isinstance(step, Launch)}


def resident_norms() -> dict[str, Program]:
    """Batch norm in one launch."""
    found = {}
    for dtype in (float32, float16, bfloat16):
        x = Spec((4, 24, 9, 9), dtype, channels_last((4, 24, 9, 9)))
        forward, backward = BatchNorm(1e-5), BatchNormGrad()
        for way in (
            batch_persistent.forward(forward, x, activation(forward), (), 0, H200.machine),
            batch_persistent.backward(backward, x, activation(backward), (), 0, H200.machine),
        ):
            assert way is not None
            for step in way.steps:
                assert isinstance(step, Together)
                found[f"{step.program.name} {dtype}"] = step.program
    return found


def point_convolutions() -> dict[str, Program]:
    """1x1 convolutions with a norm's sums, forward and backward, with all that may lie behind them."""
    found: dict[str, Program] = {}
    sizes = [ProductTiling(900, *size, H200.machine) for size in ((128, 64), (64, 256))]
    for dtype, tiles in product((float16, bfloat16), sizes):
        norm = tuple(map(source, range(5)))
        clipped, bits = Behind(source(), source(), norm, 6.0), Behind(source(), source(), norm, bits=True)
        made = [forward(tiles, dtype, target())]
        made += [data_grad(tiles, dtype, b, target()) for b in (Behind(None, None, norm[:4]), clipped, bits)]
        key = f"point_conv {tiles.columns} {tiles.depth} {dtype}"
        found |= {f"{key} {i}": step.program for i, step in enumerate(made)}
    return found


def resident_networks() -> dict[str, Program]:
    """LSTMs and GRUs that keep their weights, in blocks of their own and in such that wait for each other."""

    def elsewhere(op: Matmul, specs: Sequence[Spec], *_: object) -> Plan:
        return Plan(tuple(specs), op.infer(*specs), lambda call: lambda: None)  # products are others' kernels

    found: dict[str, Program] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistent, "matmul_plan", elsewhere)
        for mode, hidden, dtype in product(("lstm", "gru"), (128, 256), (float16, bfloat16)):
            op, sizes = Rnn(mode, hidden, reserve=True), Sizes(4, 8, 16)
            shared = persistent.tiling(op, sizes, [dtype], H200.machine)
            assert shared is not None
            shapes = [tuple(sizes), *op.state_shapes(8), *op.weight_shapes(16)]
            specs = [Spec(s, dtype).fixed for s in shapes]
            forward = persistent.forward_plan(op, specs, shared, CUDA.device, Policy())
            (y, *last, reserve), head = forward.outputs, 1 + op.states
            given = [*specs[:head], y, y, *last, reserve, *specs[head:]]
            back = RnnGrad(mode, hidden, reserve=True)
            backward = persistent.gradient_plan(back, given, shared, CUDA.device, Policy())
            both = (*programs(forward), *programs(backward))
            found |= {f"{mode} {program.name} {dtype} {i}": program for i, program in enumerate(both)}
    return found


@pytest.mark.feature("F040")
def test_every_kind_of_kernel_compiles() -> None:
    """For an H200. Each function of each kernel file is among them."""
    found = chosen()
    kernel = re.compile(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")
    written = {name for file in KERNELS.rglob("*.cu") for name in kernel.findall(file.read_text())}
    assert len(written) >= 25
    assert written - {p.name for p in found.values()} == set()
    for program in list(found.values())[:: max(1, len(found) // 240)]:
        assert program.cubin("sm_90")[:4] == b"\x7fELF", program.source


@pytest.mark.feature("F040")
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_kernels_compile_for_other_gpus(arch: str) -> None:
    x = Spec((2, 16, 9, 9), bfloat16, channels_last((2, 16, 9, 9)))
    pool = MaxPool((3, 3), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True)
    for program in programs(CUDA.plan(pool, [x], Policy())):
        assert program.cubin(arch)[:4] == b"\x7fELF"


def test_formulations_where_they_apply() -> None:
    def operands(x: tuple[int, ...], w: tuple[int, ...], stride: int, dtype: object = bfloat16) -> Operands:
        win = Window((stride, stride), ((0, 0), (0, 0)), (1, 1))
        y = (x[0], w[0], *win.output(x[2:], w[2:]))
        arrange = contiguous if dtype == float32 else channels_last
        return Operands(win, *(Spec(s, dtype, arrange(s)) for s in (x, w, y)))  # type: ignore[arg-type]

    first = operands((1024, 1, 224, 224), (96, 1, 11, 11), 4)
    assert deepens(first)
    assert pads(first)
    deep = deepened(first)
    assert deep.deep.x.shape == (1024, 16, 56, 56)
    assert deep.deep.w.shape == (96, 16, 3, 3)
    assert padded(first).deep.x.shape == (1024, 8, 224, 224)
    names = ["stem", "deep", "padded", "plain", "relaid", "wide", "direct"]
    assert [w.name for w in conv_problem("conv", first, H200).ways] == names
    assert [w.name for w in conv_problem("conv_data_grad", first, H200).ways] == [
        "padded",
        "plain",
        "relaid",
        "wide",
        "direct",
    ]
    second = operands((128, 96, 26, 26), (256, 96, 5, 5), 1)
    assert [w.name for w in conv_problem("conv", second, H200).ways] == [
        "plain",
        "turned",
        "relaid",
        "wide",
        "direct",
    ]
    tap = operands((128, 64, 28, 28), (256, 64, 1, 1), 1)
    assert [w.name for w in conv_problem("conv", tap, H200).ways] == [
        "plain",
        "product",
        "relaid",
        "wide",
        "direct",
    ]
    wide = operands(
        (8, 16, 32, 32), (32, 16, 3, 3), 2
    )  # 64 deep channels: worth timing, but not the first choice
    assert [w.name for w in conv_problem("conv", wide, H200).ways] == [
        "plain",
        "deep",
        "relaid",
        "wide",
        "direct",
    ]
    exact = operands((8, 1, 32, 32), (32, 1, 5, 5), 2, float32)  # row-major: no deep channels
    assert [w.name for w in conv_problem("conv", exact, H200).ways] == ["plain", "relaid", "direct"]


def test_products_as_convolutions() -> None:
    """The direction follows from how the operands lie; images, channels and filters fit the product."""
    expected = {
        (False, True): ("conv", (5, 7), (3, 7), (5, 3)),
        (False, False): ("conv_data_grad", (5, 3), (7, 3), (5, 7)),
        (True, False): ("conv_filter_grad", (7, 3), (5, 3), (7, 5)),
        (True, True): ("conv_data_grad", (3, 5), (7, 5), (3, 7)),
    }
    for turned, (direction, x, w, y) in expected.items():
        found, o, _ = as_convolution(Product(1, 5, 3, 7, *turned), float32)
        assert found == direction
        assert (o.x.shape[:2], o.w.shape[:2], o.y.shape[:2]) == (x, w, y)
    a, b, c = (Spec(s, bfloat16).fixed for s in ((4, 5, 7), (4, 7, 3), (4, 5, 3)))
    batched = matmul_problem(Product(4, 5, 3, 7, False, False), a, b, c, NONE, Policy())
    assert [w.name for w in batched.ways] == ["matmul", "tiled"]


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
