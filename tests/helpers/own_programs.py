"""Lamina's kernels as programs: one of each kind launched by the plans of all samples, for any machine."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

import pytest

from lamina.backends import Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.attention import tiles, windows
from lamina.backends.cuda.attention.attention import scaled, slopes_launch, weights_launch
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.direct import direct
from lamina.backends.cuda.conv.fast_fir import fast_fir_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import (
    INCLUDE,
    Launch,
    Launches,
    Program,
    Together,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.matmul.few_rows import few_rows
from lamina.backends.cuda.matmul.matmul import tiled
from lamina.backends.cuda.matmul.padded import repack
from lamina.backends.cuda.matmul.small import small_product
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
    Matmul,
    QuantizedConv,
    Window,
)
from lamina.ops.primitives.collective import Collective
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.gather import GatherGrad
from lamina.ops.primitives.grid_sample import GridSample
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes
from lamina.ops.primitives.sort import Sort
from lamina.runtime import Device, compile_cubin
from lamina.spec import (
    DType,
    Policy,
    Spec,
    bfloat16,
    channels_last,
    float8_e4m3fn,
    float16,
    float32,
    float64,
    int8,
    int64,
    uint8,
)
from tests.helpers.registered import registered

#: Their plans need cuDNN.
LIBRARY = {
    "conv", "conv_data_grad", "conv_filter_grad", "matmul", "fused", "rnn", "rnn_grad", "attention", "attention_grad",
    "joint_attention", "joint_attention_grad", "parted_attention", "conv_norm", "data_grad_norm",
    "quantized_conv", "quantized_matmul", "matmul_bias_gelu", "matmul_gelu_grad",
}  # fmt: skip
#: Collectives need NCCL.
OWN = [n for n in registered() if n not in LIBRARY and not issubclass(REGISTRY[n], Collective)]


def cases(name: str, *, few: bool = False) -> Iterator[tuple[Op, list[Spec]]]:
    """Every sample in every dtype, row-major and channels-last, and with open layouts.

    few: only bfloat16, or the first dtype of ops that do not support it.
    """
    op_class = REGISTRY[name]
    for sample in op_class.samples():
        dtypes = sample.dtypes or op_class.dtypes
        for dtype in (bfloat16 if bfloat16 in dtypes else dtypes[0],) if few else dtypes:
            shapes = [Spec(a.shape, a.dtype or dtype) for a in sample.args]
            yield sample.op, shapes
            yield sample.op, [s.fixed for s in shapes]
            yield sample.op, [Spec(s.shape, s.dtype, channels_last(s.shape)) for s in shapes]


#: Enlarged sizes of samples: large and odd, large and aligned, long rows, many rows.
LARGER: tuple[Callable[[int, int], int], ...] = (
    lambda n, axis: 37 * n,
    lambda n, axis: 16 * n,
    lambda n, axis: n if axis == 0 else 512 * n,
    lambda n, axis: 4096 * n if axis == 0 else n,
)


def enlarged(specs: Sequence[Spec], larger: Callable[[int, int], int]) -> list[Spec]:
    """Operands with other sizes, equal where they were equal; ones stay."""
    sizes: dict[int, int] = {}
    for s in specs:
        for axis, n in enumerate(s.shape):
            sizes.setdefault(n, n if n < 2 else larger(n, axis))
    return [Spec(tuple(sizes[n] for n in s.shape), s.dtype) for s in specs]


@cache
def hasty_cubin(program: Program, target: str) -> bytes:
    """Unoptimized machine code, in half the time or less: enough to tell whether a program compiles.

    Cached: machines of one architecture have most programs in common.
    """
    options = {"ofast_compile": "max"}
    return compile_cubin(program.source, arch=target, options=options, includes=[INCLUDE], name=program.name)


def programs(plan: Plan) -> tuple[Program, ...]:
    if not isinstance(plan.make, Launches):
        return ()
    return (*plan.make.programs, *plan.make.plain_programs)


def collected(device: Device, *, few: bool = False) -> dict[str, Program]:
    """A program of each kind for a machine: by kernel, and by its macros (types and switches, not sizes).

    few: see `cases`.
    """
    found: dict[str, Program] = {}
    cuda = backend(device)
    for name in OWN:
        for op, specs in cases(name, few=few):
            for program in programs(cuda.plan(op, specs, Policy(check_indices=True))):
                kinds = [s.dtype.short for s in specs] + [
                    line for line in program.text.split("\n") if "typedef" in line
                ]
                key = f"{name if program.name == 'elementwise' else program.name} {' '.join(kinds)}"
                found.setdefault(key, program)
    win = Window((2, 2), ((1, 1), (1, 1)), (1, 1))
    for dtype in (float64, float32, float16, bfloat16):
        sizes = ((2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 5, 5))
        o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in sizes))
        for direction in (Conv, ConvDataGrad, ConvFilterGrad):
            found[f"{direction.name} {dtype}"] = direct(direction, o).program
            for formulation in conv_problem(direction, o, device).formulations:
                for step in (*formulation.before, *formulation.after):
                    if isinstance(step, Launch):
                        found[f"{direction.name} {formulation.name} {step.program.name} {dtype}"] = (
                            step.program
                        )
        if dtype is not float64:
            found |= {
                f"{p.text.count('GROUP')} {p.name} {dtype}": p for p in products_of_few_rows(dtype, device)
            }
        a = Spec((5, 7), dtype).fixed
        found[f"tiled {dtype}"] = tiled(Product(1, 5, 3, 7, False, True), a).program
        found[f"repack {dtype}"] = repack(1, (5, 7), (5, 8), dtype, source(), scratch()).program
        scores = Spec((2, 3, 5, 7), dtype).fixed
        launch = weights_launch(Attention(0.5, True, stats=True), scores, [scores], (source(),) * 4)
        found[f"weights {dtype}"] = launch.program
        launch = slopes_launch(AttentionGrad(0.5), scores, [], (source(),) * 6)
        found[f"slopes {dtype}"] = launch.program
        if dtype.itemsize == 2:
            found |= {f"small {dtype} {i}": p for i, p in enumerate(small_products(dtype))}
            found[f"scaled {dtype}"] = scaled((scores, source()), target(), 0.5).program
            found |= {f"{p.name} {dtype}": p for p in attention_in_windows(dtype, device)}
            found |= {f"{p.name} {dtype}": p for p in attention_over_tiles(dtype, device)}
        rows = Spec((8192, 256), dtype), Spec((8192, 1), int64)  # more looks than are worth it, few elements
        found[f"scatter_many {dtype}"] = programs(cuda.plan(GatherGrad(0, 16), rows, Policy()))[-1]
        rows = Spec((999, 60), dtype), Spec((999, 60), int64)
        found[f"scatter_claimed {dtype}"] = programs(cuda.plan(GatherGrad(1, 50), rows, Policy()))[-1]
        images = Spec((99, 32, 9, 7), dtype), Spec((99, 8, 9, 2), dtype)
        sampled = cuda.plan(GridSample("bilinear", "zeros", False), images, Policy())
        found[f"grid_sample_held {dtype}"] = programs(sampled)[0]
        for op in (Sort(), Sort(False, 5)):  # too many for comparing all pairs
            sorting = programs(cuda.plan(op, [Spec((1, 20000), dtype)], Policy()))
            found |= {f"{op} {p.name} {dtype}": p for p in sorting}
        short = ShortRows(Spec((9, 256), dtype).fixed, 9, 256, True, device.machine)
        ends = (target(), target()), scratch(), (target(1), target(2))
        for launch in short.gradients((source(),) * 6, *ends, dtype):
            found[f"{launch.program.name} {dtype}"] = launch.program
    found |= (
        own_convolutions(device)
        | halved_convolutions()
        | resident_norms(device)
        | resident_networks(device)
        | conv1x1_kernels(device)
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
        found[f"transpose {dtype}"] = programs(cuda.reorder(last, Spec(shape, dtype)))[0]
        image = Spec((2, 3, 16, 24), dtype)
        last = Spec(image.shape, dtype, channels_last(image.shape))
        found[f"interleave {dtype}"] = programs(cuda.reorder(image, last))[0]
    rounded = cuda.plan(Cast(bfloat16), [Spec((2, 3, 16, 24), float32).fixed], Policy())
    assert rounded.relaid is not None
    converted = rounded.relaid(channels_last((2, 3, 16, 24)))
    assert converted is not None
    found["interleave float32 as bfloat16"] = programs(converted)[0]
    return found


def products_of_few_rows(dtype: DType, device: Device) -> list[Program]:
    """[2, 32] by [32, 8], the second in either order, with a bias."""
    c, made = Spec((2, 8), dtype).fixed, []
    for transposed in (False, True):
        form = few_rows(Product(1, 2, 8, 32, False, transposed), (source(0), source(1), target()))
        assert form is not None
        found = form.formulation(c, Epilogue((Add(),), (Spec((8,), dtype),), 2), device.machine)
        assert found is not None
        made += [step.program for step in found.steps if isinstance(step, Launch)]
    return made


def small_products(dtype: DType) -> list[Program]:
    """[20, 32] by [32, 8], in either order, with a bias."""
    c, made = Spec((20, 8), dtype).fixed, []
    for a, b in ((False, False), (False, True), (True, False)):
        form = small_product(Product(1, 20, 8, 32, a, b), (source(0), source(1), target()))
        assert form is not None
        found = form.formulation(c, Epilogue((Add(),), (Spec((8,), dtype),), 2))
        assert found is not None
        made += [step.program for step in found.steps if isinstance(step, Launch)]
    return made


def attention_in_windows(dtype: DType, device: Device) -> list[Program]:
    """Forward and backward, of heads [2, 3, 9, 8] with a bias."""
    heads, bias = Spec((2, 3, 9, 8), dtype).fixed, Spec((1, 3, 9, 9), dtype).fixed
    stats = Spec((2, 3, 9, 1), float32).fixed
    given = [*((heads, source(i)) for i in range(3)), (bias, source(3))]
    launch = windows.forward(Attention(0.5, stats=True), given, [(heads, target()), (stats, target(1))])
    more = [*given[:3], (heads, source(3)), (stats, source(4)), (heads, source(5)), (bias, source(6))]
    made = [*((heads, target(i)) for i in range(3)), (bias, target(3))]
    steps, _ = windows.backward(AttentionGrad(0.5), more, made, device, Policy())
    return [step.program for step in (launch, *steps) if isinstance(step, Launch)]


def attention_over_tiles(dtype: DType, device: Device) -> list[Program]:
    """Forward and backward, of heads [2, 3, 70, 8] with a bias and dropout."""
    heads, bias, mask = (
        Spec(shape, dtype).fixed for shape in ((2, 3, 70, 8), (1, 3, 70, 70), (2, 3, 70, 70))
    )
    stats = Spec((2, 3, 70, 1), float32).fixed
    beside = [(bias, source(6)), (mask, source(7))]
    given = [(heads, source(i)) for i in range(3)]
    op, made = Attention(0.5, keep=0.5, stats=True), [(heads, target(i)) for i in range(3)]
    launch = tiles.forward(op, [*given, *beside], [made[0], (stats, target(1))])
    more = [(heads, source(3)), (stats, source(4)), (heads, source(5)), *beside]
    made.append((bias, target(3)))
    steps, _ = tiles.backward(AttentionGrad(0.5, keep=0.5), [*given, *more], made, device, Policy())
    return [step.program for step in (launch, *steps) if isinstance(step, Launch)]


def own_convolutions(device: Device) -> dict[str, Program]:
    """Kernels of convolutions with one filter per channel, over few channels, and of gradients tap by tap."""
    depthwise = Window((1, 1), ((1, 1), (1, 1)), (1, 1), 16), ((2, 16, 9, 9), (16, 1, 3, 3), (2, 16, 9, 9))
    rows = Window((1, 1), ((3, 3), (3, 3)), (1, 1), 16), ((2, 16, 9, 9), (16, 1, 7, 7), (2, 16, 9, 9))
    stem = Window((2, 2), ((3, 3), (3, 3)), (1, 1)), ((2, 3, 18, 20), (64, 3, 7, 7), (2, 64, 9, 10))
    dilated = Window((1, 1), ((2, 2), (2, 2)), (2, 2)), ((2, 16, 9, 9), (16, 16, 3, 3), (2, 16, 9, 9))
    found = {}
    for win, shapes in (depthwise, rows, stem, dilated):
        for dtype in (float16, bfloat16):
            o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in shapes))
            for direction in (Conv, ConvDataGrad, ConvFilterGrad):
                for formulation in conv_problem(direction, o, device).formulations:
                    steps = formulation.steps if formulation.name in ("depthwise", "stem", "products") else ()
                    for step in (s for s in steps if isinstance(s, Launch)):
                        found[f"{direction.name} {formulation.name} {step.program.name} {dtype}"] = (
                            step.program
                        )
    return found


def halved_convolutions() -> dict[str, Program]:
    """The kernels around convolutions of half as many taps."""
    shapes = ((2, 8, 18, 20), (16, 8, 7, 7), (2, 16, 18, 20))
    o = Operands(Window((1, 1), ((3, 3), (3, 3)), (1, 1)), *(Spec(s, bfloat16) for s in shapes))
    formulation = fast_fir_formulation(
        Conv, o, lambda part: Plan((part.x, part.w), (part.y,), lambda call: lambda: None)
    )
    return {step.program.name: step.program for step in formulation.steps if isinstance(step, Launch)}


def resident_norms(device: Device) -> dict[str, Program]:
    """Batch norm in one launch."""
    found = {}
    for dtype in (float32, float16, bfloat16):
        x = Spec((4, 24, 9, 9), dtype, channels_last((4, 24, 9, 9)))
        forward, backward = BatchNorm(1e-5), BatchNormGrad()
        for formulation in (
            batch_persistent.forward(forward, x, activation(forward), (), 0, device.machine),
            batch_persistent.backward(backward, x, activation(backward), (), 0, device.machine),
        ):
            assert formulation is not None
            for step in formulation.steps:
                assert isinstance(step, Together)
                found[f"{step.program.name} {dtype}"] = step.program
    return found


def conv1x1_kernels(device: Device) -> dict[str, Program]:
    """1x1 convolutions with a norm's sums, forward and backward, with all possible epilogues."""
    found: dict[str, Program] = {}
    sizes = [ProductTiling(900, *size, device.machine) for size in ((128, 64), (64, 256))]
    for dtype, tiling in product((float16, bfloat16), sizes):
        norm = tuple(map(source, range(5)))
        clipped, bits = Behind(source(), source(), norm, 6.0), Behind(source(), source(), norm, bits=True)
        made = [forward(tiling, dtype, target())]
        made += [data_grad(tiling, dtype, b, target()) for b in (Behind(None, None, norm[:4]), clipped, bits)]
        key = f"point_conv {tiling.columns} {tiling.depth} {dtype}"
        found |= {f"{key} {i}": step.program for i, step in enumerate(made)}
    return found


def resident_networks(device: Device) -> dict[str, Program]:
    """LSTMs and GRUs with persistent weights, in independent blocks and in blocks that wait for each other."""

    def elsewhere(op: Matmul, specs: Sequence[Spec], *_: object) -> Plan:
        return Plan(tuple(specs), op.infer(*specs), lambda call: lambda: None)  # products are library kernels

    found: dict[str, Program] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistent, "matmul_plan", elsewhere)
        for mode, hidden, dtype in product(("lstm", "gru"), (128, 256), (float16, bfloat16)):
            op, sizes = Rnn(mode, hidden, reserve=True), Sizes(4, 8, 16)
            shared = persistent.tiling(op, sizes, [dtype], device.machine)
            assert shared is not None
            shapes = [tuple(sizes), *op.state_shapes(8), *op.weight_shapes(16)]
            specs = [Spec(s, dtype).fixed for s in shapes]
            forward = persistent.forward_plan(op, specs, shared, device, Policy())
            (y, *last, reserve), head = forward.outputs, 1 + op.states
            given = [*specs[:head], y, y, *last, reserve, *specs[head:]]
            back = RnnGrad(mode, hidden, reserve=True)
            backward = persistent.gradient_plan(back, given, shared, device, Policy())
            both = (*programs(forward), *programs(backward))
            found |= {f"{mode} {program.name} {dtype} {i}": program for i, program in enumerate(both)}
    return found
