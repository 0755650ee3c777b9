"""Convolution with one filter per channel: own kernels for half types channels last.

With at most nine taps a thread keeps the filters of eight channels in registers and walks along the rows; other
filters, and channels that are no multiple of eight, walk down the rows (conv/depthwise_rows.py).
"""

from __future__ import annotations

from math import prod

from lamina.backends.cuda.conv.depthwise_rows import filter_sum, rows_formulation, takes_rows
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.elementwise.loop import Statement
from lamina.backends.cuda.elementwise.pointwise import chain_values
from lamina.backends.cuda.launch.indexing import KernelSizes, index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Aligned,
    Launch,
    Program,
    Table,
    c_type,
    constants,
    scratch,
    source,
)
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import Spec, bfloat16, float16

#: Output positions along W per thread and step; strides must divide it.
_STRIP = 4
#: The most taps whose filters (or gradient sums) fit into a thread's registers.
_MOST_TAPS = 9
_THREADS = 128
#: Blocks resident on a multiprocessor; no more are launched.
_RESIDENT = 3


def is_depthwise(direction: Direction, o: Operands, vector: Vector | None) -> bool:
    """Whether the kernels support it: 2-D, taps and sums that fit into registers; an epilogue only forward."""
    win, channels = o.window, o.x.shape[1]
    if vector is None or vector.residual is not None:
        return False
    if direction is not Conv and vector != Vector():
        return False
    shape = win.rank == 2 and win.groups == channels == o.w.shape[0] and channels > 1
    plain = max(win.dilation) == 1 and not win.flip and o.x.dtype in (float16, bfloat16)
    return shape and plain and (_takes_vectors(o) or takes_rows(direction, o))


def _takes_vectors(o: Operands) -> bool:
    """Whether depthwise.cu supports it: few taps, channels in multiples of an access, strides that divide a strip."""
    divides = all(_STRIP % s == 0 for s in o.window.stride)
    divides = divides and all(index_type(_strips(made)[1]) == "i32" for made in (o.x, o.y))
    return divides and o.x.shape[1] % _width(o) == 0 and prod(o.w.shape[2:]) <= _MOST_TAPS


def _width(o: Operands) -> int:
    """Channels per thread."""
    return VECTOR // o.x.dtype.itemsize


def depthwise_formulation(
    direction: Direction, o: Operands, vector: Vector | None, machine: Machine
) -> Formulation:
    """The own kernel of one direction; the filter gradient sums the blocks' partial results in a second kernel."""
    if not _takes_vectors(o):
        return rows_formulation(direction, o, vector, epilogue_text(vector or Vector(), o.y), machine)
    made = o.x if direction is ConvDataGrad else o.y
    along, work = _strips(made)
    chunks = o.x.shape[1] // _width(o)
    per_block = max(n for n in range(1, 33) if chunks % n == 0)
    lanes = _THREADS // per_block
    groups = chunks // per_block
    slices = max(1, min(-(-work // lanes), _RESIDENT * machine.multiprocessors // groups))
    k_step, _, h_step, w_step = o.w.physical.strides
    kind = index_type(max(spec.nbytes // spec.dtype.itemsize for spec in (o.x, o.y)))
    sizes = KernelSizes(known=kind != "i32")
    sizes.add(CT=per_block, LANES=lanes, GROUPS=groups, STRIPS=along, WORK=work)
    sizes.add(C=o.x.shape[1], H=o.x.shape[2], W=o.x.shape[3], OH=o.y.shape[2], OW=o.y.shape[3])
    sizes.add(W_K=k_step, W_H=h_step, W_W=w_step)
    x_n, _, x_h, x_w = o.x.physical.strides
    sizes.add(X_N=x_n, X_H=x_h, X_W=x_w)
    sizes.add_quotient("strip_row", along)
    sizes.add_quotient("row_image", made.shape[2])
    x, w, y = places_of(direction)
    bias = w if vector is None or vector.bias is None else source(vector.bias)
    name, places = {
        Conv: ("depthwise", (x, w, bias, y)),
        ConvDataGrad: ("depthwise_data_grad", (y, w, x)),
        ConvFilterGrad: ("depthwise_filter_grad", (x, y, scratch())),
    }[direction]
    types = f"typedef {kind} Index;\ntypedef {c_type(o.x.dtype)} T;\n{sizes.text}"
    program = Program(name, "conv/depthwise.cu", types + _constants(direction, o, vector or Vector()))
    launch = Launch(program, (slices * groups,), (per_block * lanes,), (*places, Table(sizes.values)))
    if direction is ConvFilterGrad:
        spare = slices * o.w.numel * 4
        return Formulation("depthwise", steps=(launch, filter_sum(o, slices, w)), scratch=spare)
    return Formulation("depthwise", steps=(Aligned(), launch) if direction is Conv else (launch,))


def _strips(made: Spec) -> tuple[int, int]:
    """Strips along a row of the tensor that a kernel iterates over, and in all."""
    along = -(-made.shape[3] // _STRIP)
    return along, made.shape[0] * made.shape[2] * along


def _constants(direction: Direction, o: Operands, vector: Vector) -> str:
    """The constants of depthwise.cu."""
    win, (kh, kw) = o.window, o.w.shape[2:]
    pad, stride = [lo for lo, _ in win.padding], win.stride
    columns = range(-(-(pad[1] - kw + 1) // stride[1]), (_STRIP - 1 + pad[1]) // stride[1] + 1)
    numbers: dict[str, int | str] = {
        **{"V": _width(o), "TW": _STRIP, "KH": kh, "KW": kw},
        **{"SH": stride[0], "SW": stride[1], "PH": pad[0], "PW": pad[1]},
        **{"FIRST": f"({columns.start})", "COLUMNS": len(columns)},
        **{{Conv: "FORWARD", ConvDataGrad: "DATA_GRAD", ConvFilterGrad: "FILTER_GRAD"}[direction]: 1},
    }
    return constants(**numbers) + epilogue_text(vector, o.y)


def epilogue_text(vector: Vector, y: Spec) -> str:
    """BIAS, and the activations as a function `activated` of a sum, of own kernels."""
    body = chain_values(vector.activations, y, Statement("a0", "f32", ""), (), 1)
    text = constants(BIAS=int(vector.bias is not None))
    text += "__device__ __forceinline__ f32 activated(f32 a0)\n{\n"
    text += "".join(f"    const {v.type} {v.name} = {v.expression};\n" for v in body)
    return f"{text}    return {body[-1].name if body else 'a0'};\n}}\n"
