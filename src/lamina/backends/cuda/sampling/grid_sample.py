"""Sampling of images at data-dependent positions: a thread per position and a few channels; gradients in fixed
point. Small row-major images are held in shared memory."""

from __future__ import annotations

from math import gcd, prod

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
    VECTOR,
    Bindable,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    round_up,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.sampling.fixed_sum import count_bits, fixed_sum
from lamina.ops.primitives.grid_sample import (
    PADDINGS,
    TAPS,
    GridSample,
    GridSampleGrad,
    GridSampleGridGrad,
)
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Shape, Spec, channels_last

_FILE = "sampling/grid_sample.cu"
#: Channels that share a position's weights, if there are enough threads.
_MOST_EACH, _THREADS = 16, 1 << 17
#: Bytes of shared memory for several channels, so that a multiprocessor runs four blocks, and threads of a block.
_HELD, _BLOCK = 56 << 10, 256
#: Bytes of cache that a row of taps takes, at places in any order.
_SECTOR = 32
GridOp = GridSample | GridSampleGrad | GridSampleGridGrad


@kernels(GridSample, source="kernel")
def grid_sample(op: GridSample, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """y in the memory order of x: row-major or channels last."""
    last = _is_last(specs[0])
    x, grid = _laid(specs[0], last), specs[1].open.fixed
    y = _laid(op.infer(*(s.open for s in specs))[0], last)
    if not y.numel:
        return kernel_plan(device, [x, grid], [y], [], label=op.name)
    places = (source(0), source(1), target())

    held = 0 if last else _held(op, x, y, device.machine)

    def launch(aligned: bool) -> tuple[Launch]:
        if held:
            return (_launch_held(op, x, y, held, places, aligned),)
        return (_launch("grid_sample", op, x.shape, y.shape, x, _each(y, last, aligned), places),)

    plain = (lambda: launch(False)) if last or held else None
    return kernel_plan(device, [x, grid], [y], launch(True), label=op.name, plain=plain)


@kernels(GridSampleGrad, source="kernel")
def grid_sample_grad(op: GridSampleGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The terms are added by integer atomics: reproducible in any order."""
    last = _is_last(specs[0])
    g, grid = _laid(specs[0], last), specs[1].open.fixed
    dx = _laid(op.infer(*(s.open for s in specs))[0], last)
    places = prod(g.shape[2:])
    terms = places * TAPS[op.mode] ** len(op.shape)

    def steps(aligned: bool) -> tuple[list[Bindable], int]:
        each = _each(g, last, aligned)

        def add(sums: Place, found: Place) -> tuple[Launch, Launch]:
            shapes = (dx.shape, g.shape, g, each)
            bits = count_bits(terms)
            adding = _launch("grid_sample_grad", op, *shapes, (source(0), source(1), sums, found), bits)
            return adding, _launch(
                "grid_sample_odd", op, *shapes, (source(0), source(1), found, target()), bits
            )

        return fixed_sum(g, source(0), dx, terms, add)

    found, workspace = steps(True)
    plain = (lambda: tuple(steps(False)[0])) if last else None
    return kernel_plan(device, [g, grid], [dx], found, label=op.name, workspace=workspace, plain=plain)


@kernels(GridSampleGridGrad, source="kernel")
def grid_sample_grid_grad(
    op: GridSampleGridGrad, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """A sum over the channels at each position."""
    last = _is_last(specs[1])
    g, x, grid = _laid(specs[0], last), _laid(specs[1], last), specs[2].open.fixed
    op.infer(*(s.open for s in specs))
    steps = []
    if grid.numel:
        places = (source(0), source(1), source(2), target())
        steps.append(_launch("grid_sample_grid_grad", op, x.shape, g.shape, x, 1, places))
    return kernel_plan(device, [g, x, grid], [grid], steps, label=op.name)


def _is_last(spec: Spec) -> bool:
    return spec.layout is not None and spec.shape[1] > 1 and spec.layout == channels_last(spec.shape)


def _laid(spec: Spec, last: bool) -> Spec:
    return full(spec, channels_last(spec.shape)) if last else spec.open.fixed


def _each(y: Spec, last: bool, aligned: bool) -> int:
    """Channels per thread: as many as 16 bytes hold, or as leave enough threads."""
    channels = y.shape[1]
    if last:
        each = VECTOR // y.dtype.itemsize if aligned else 1
        while channels % each:
            each //= 2
        return each
    each = 1
    while 2 * each <= min(_MOST_EACH, channels) and y.numel // (2 * each) >= _THREADS:
        each *= 2
    return each


def _launch(
    name: str,
    op: GridOp,
    x: Shape,
    y: Shape,
    like: Spec,
    each: int,
    places: tuple[Place, ...],
    bits: int = 1,
) -> Launch:
    """A launch for images of shape x that are sampled to shape y, in the layout of `like`."""
    (n, c), count = x[:2], prod(y[2:])
    text = _text(op, x, y, like, each, bits)
    threads = n * count * (1 if name.endswith("grid_grad") else -(-c // each))
    return looping(Program(name, _FILE, text), threads, places)


def _text(op: GridOp, x: Shape, y: Shape, like: Spec, each: int, bits: int = 1) -> str:
    """The constants."""
    n, c, *spatial = x
    sizes, count = [1] * (3 - len(spatial)) + spatial, prod(y[2:])
    kind = index_type(max(prod(x), prod(y), n * count * len(spatial)))
    return f"typedef {kind} Index;\ntypedef {c_type(like.dtype)} T;\n" + constants(
        RANK=len(spatial), MODE=list(TAPS).index(op.mode), PADDING=PADDINGS.index(op.padding),
        ALIGN=int(op.align_corners), N=n, C=c, PLACES=count, S0=sizes[0], S1=sizes[1], S2=sizes[2],
        LAST=int(_is_last(like)), EACH=each, COUNT_BITS=bits,
    )  # fmt: skip


def _held(op: GridSample, x: Spec, y: Spec, machine: Machine) -> int:
    """The number of channels that a block holds in shared memory; 0 where that does not pay.

    It does if the taps of all places take more of the cache than the image itself, and blocks are as many as
    multiprocessors.
    """
    (n, c, *spatial), places = x.shape, prod(y.shape[2:])
    plane, taps = prod(spatial) * x.dtype.itemsize, TAPS[op.mode] ** (len(spatial) - 1)
    most = (
        min(machine.shared_memory, machine.multiprocessor_shared_memory // 2) - machine.reserved_shared_memory
    )
    if not plane or plane > most or places * taps * _SECTOR < 2 * plane:
        return 0
    each = min(max(1, _HELD // plane), _MOST_EACH, c)
    while each > 1 and n * -(-c // each) < machine.multiprocessors:
        each //= 2
    return each if n * -(-c // each) >= machine.multiprocessors else 0


def _launch_held(
    op: GridSample, x: Spec, y: Spec, each: int, places: tuple[Place, ...], aligned: bool
) -> Launch:
    """The launch of blocks that hold `each` channels."""
    (n, c, *spatial), count = x.shape, prod(y.shape[2:])
    width = gcd(prod(spatial), VECTOR // x.dtype.itemsize) if aligned else 1
    text = _text(op, x.shape, y.shape, x, each) + constants(HELD=1, V=width)
    shared, threads = each * prod(spatial) * x.dtype.itemsize, min(_BLOCK, round_up(count, 32))
    program = Program("grid_sample_held", _FILE, text)
    return Launch(program, (n * -(-c // each),), (threads,), places, shared, waves=LOOPING)
