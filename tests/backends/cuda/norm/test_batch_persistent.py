"""Batch norm in one launch, run on a CPU with all blocks at the same time: kept elements and others, idle threads."""

import ctypes
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda.launch import program
from lamina.backends.cuda.launch.program import Together
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.norm import activation
from lamina.backends.cuda.select.formulations import Formulation
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import BatchNorm, BatchNormGrad
from lamina.runtime import Device, Machine
from lamina.spec import (
    DType,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200, KINDS

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
#: Shapes, and blocks of the device that is played.
SHAPES = [((2, 8, 5, 3), 4), ((40, 24, 6, 5), 3), ((9, 72, 11, 3), 6), ((700, 16), 2), ((3, 144, 7, 6), 132)]


def arranged(shape: tuple[int, ...]) -> Spec:
    return Spec(shape, bfloat16, channels_last(shape) if len(shape) > 2 else None)


def operands(op: BatchNorm | BatchNormGrad, shape: tuple[int, ...], dtype: DType) -> list[Array]:
    rng = np.random.default_rng(shape[1])
    wide, channels = dtype.compute.numpy, shape[1]

    def image() -> Array:
        return (np.round(rng.standard_normal(shape) * 8) / 8).astype(dtype.numpy)

    small = [(np.round(rng.standard_normal(channels) * 8) / 8).astype(wide) for _ in range(3)]
    positive = rng.choice([0.5, 1.0, 2.0], channels).astype(wide)
    if isinstance(op, BatchNorm):
        return [image(), *small, positive, *([image()] if op.residual else [])]
    extra = [image()] if op.residual else [small[2]] if op.relu else []
    return [image(), image(), *small[:2], positive, *extra]


def run(op: BatchNorm | BatchNormGrad, arrays: list[Array], machine: Machine = H200.machine) -> list[Array]:
    """The outputs of the resident way."""
    specs = [
        Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape) if a.ndim > 2 else None).fixed for a in arrays
    ]
    outs = [
        Spec(s.shape, s.dtype, channels_last(s.shape) if s.ndim > 2 else None).fixed for s in op.infer(*specs)
    ]
    formulation = made(op, specs[isinstance(op, BatchNormGrad)], machine)
    held = [emulator.Memory(s.nbytes) for s in specs]
    for memory, array, spec in zip(held, arrays, specs, strict=True):
        memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    results, scratch = [emulator.Memory(s.nbytes) for s in outs], emulator.Memory(formulation.scratch)
    call = Call(tuple(m.pointer for m in held), tuple(m.pointer for m in results), scratch.pointer)
    emulator.run_steps(formulation.steps, call)
    for memory in (*results, scratch):
        memory.check(str(op))
    return [
        unpack(m.bytes.copy().view(s.dtype.numpy), s.physical, s.shape)
        for m, s in zip(results, outs, strict=True)
    ]


def made(op: BatchNorm | BatchNormGrad, x: Spec, machine: Machine = H200.machine) -> Formulation:
    found = (
        batch_persistent.forward(op, x, activation(op), (), 0, machine)
        if isinstance(op, BatchNorm)
        else batch_persistent.backward(op, x, activation(op), (), 0, machine)
    )
    assert found is not None
    return found


def with_blocks(blocks: int, kept: int = 192 << 10) -> Machine:
    """A machine of so many multiprocessors, with so much shared memory beside what the kernels declare."""
    return replace(H200.machine, multiprocessors=blocks, shared_memory=kept + batch_persistent._DECLARED)


@compiler
@pytest.mark.parametrize(("shape", "blocks"), SHAPES, ids=str)
@pytest.mark.parametrize("kept", [192 << 10, 0], ids=["kept", "read again"])
def test_values(shape: tuple[int, ...], blocks: int, kept: int) -> None:
    """Plain, relu, clipped relu, with a residual; elements kept in shared memory, or read twice."""
    machine = with_blocks(blocks, kept)
    turn = shape[1] // 8
    dtype = (bfloat16, float32, float16)[turn % 3]
    relu, residual, hi = ((False, False, None), (True, False, 0.75), (True, True, None), (True, True, 0.5))[
        (turn + (kept > 0)) % 4
    ]
    for op in (BatchNorm(1e-5, 0.1, relu, residual, hi), BatchNormGrad(relu, relu and residual, True, hi)):
        arrays = operands(op, shape, dtype)
        for i, (y, ref) in enumerate(
            zip(run(op, arrays, machine), run_reference(op, arrays, float64), strict=True)
        ):
            problem = mismatch(y, ref, as_dtype(y.dtype))
            assert not problem, f"{op} output {i} of {shape} {dtype}: {problem}"


@compiler
@pytest.mark.parametrize(("shape", "blocks"), [((40, 24, 6, 5), 1), ((29, 136, 7, 6), 1)], ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_copies_that_arrive_late(shape: tuple[int, ...], blocks: int, residual: bool) -> None:
    """Several batches are under way at once: the same bits when each arrives just before it is waited for."""
    machine = with_blocks(blocks)
    for op in (BatchNorm(1e-5, 0.1, True, residual), BatchNormGrad(True, residual)):
        arrays = operands(op, shape, bfloat16)
        t = batch_persistent.tiling(arranged(shape), 1 + isinstance(op, BatchNormGrad), machine)
        assert t is not None
        assert t.held >= 8
        found = run(op, arrays, machine)
        with emulator.contrary():
            late = run(op, arrays, machine)
        assert [y.tobytes() for y in late] == [y.tobytes() for y in found], op


@pytest.mark.parametrize("device", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("arrays", [1, 2])
@pytest.mark.parametrize("channels", [16, 24, 64, 144, 160, 256, 576, 960, 1280, 2048, 8192])
def test_tiling_fills_the_device(channels: int, arrays: int, device: Device) -> None:
    """All rows and channels have a block; few threads and multiprocessors idle; it fits into shared memory."""
    x = arranged((128, channels, 28, 28))
    t, machine = batch_persistent.tiling(x, arrays, device.machine), device.machine
    assert t is not None
    assert t.groups * t.lanes * t.width >= channels
    assert (t.splits - 1) * t.part < t.rows <= t.splits * t.part
    assert 0.9 * machine.multiprocessors < t.groups * t.splits <= machine.multiprocessors
    assert t.held % t.unroll == 0
    assert 0 < t.shared <= machine.shared_memory - batch_persistent._DECLARED
    assert 512 // t.lanes * t.lanes > 0.9 * 512


def test_what_is_not_for_it() -> None:
    twelve, sixteen = (4, 12, 5, 5), (4, 16, 5, 5)
    for x in (
        Spec(twelve, bfloat16, channels_last(twelve)),
        Spec(sixteen, float64, channels_last(sixteen)),
        Spec(sixteen, bfloat16).fixed,
    ):
        assert batch_persistent.tiling(x, 1, H200.machine) is None
    x = arranged((4, 16, 5, 5))
    assert batch_persistent.backward(BatchNormGrad(moving=False), x, "", (), 0, H200.machine) is None


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=str)
def test_offsets_of_32_bits_reach_everything(dtype: DType) -> None:
    """Elements are counted by 32 bits with a sign, with room for what a step goes beyond the end."""
    most, channels = 2**31 - 2**22, 4096
    for rows, taken in ((most // channels, True), (most // channels + 1, False), (most // 64, False)):
        found = batch_persistent.tiling(Spec((rows, channels), dtype), 1, H200.machine)
        assert (found is not None) == taken, rows
    assert batch_persistent.tiling(Spec((64, channels), dtype), 1, H200.machine) is not None


@pytest.mark.parametrize("blocks", [1, 2, 132])
def test_channels_are_at_most_what_the_blocks_hold(blocks: int) -> None:
    """Each block has up to 64 accesses of 16 bytes side by side."""
    machine, most = with_blocks(blocks), blocks * 64 * 8
    assert batch_persistent.tiling(arranged((2, most, 3, 3)), 1, machine) is not None
    assert batch_persistent.tiling(arranged((2, most + 8 * 64, 3, 3)), 1, machine) is None


@pytest.mark.parametrize("residual", [False, True])
def test_machine_code(residual: bool) -> None:
    """They compile for an H200 without spilling more than shared memory has room for."""
    x = arranged((128, 256, 14, 14))
    for op in (BatchNorm(1e-5, 0.1, True, residual, 6.0), BatchNormGrad(True, residual, True, 6.0)):
        (step,) = made(op, x).steps
        assert isinstance(step, Together)
        assert len(step.program.cubin(H200.machine.target)) > 1000


@pytest.mark.parametrize(("blocks", "runs"), [(0, ["apart"]), (1, ["together"])])
def test_a_small_device_runs_the_passes_apart(
    blocks: int, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not all blocks fit at once, the kernels of several passes run in the same workspace."""
    found: list[str] = []

    class Passes:
        def bind(self, device: Device, call: Call) -> Callable[[], None]:
            return lambda: found.append("apart")

    class Kernel:
        def resident_blocks(self, block: int, *, shared: int = 0) -> int:
            return blocks

        def prepare(self, grid: Any, block: Any, *values: Any, cooperative: bool, **more: Any) -> Any:
            assert cooperative
            return lambda: found.append("together")

    monkeypatch.setattr(program.Program, "load", lambda one, device: Kernel())
    monkeypatch.setattr(program, "_counters", program.Counters)
    op, device = BatchNorm(1e-5), Device("cpu")
    x, machine = arranged((128, 64, 9, 9)), with_blocks(1)
    formulation = batch_persistent.forward(op, x, activation(op), (Passes(),), 1 << 20, machine)
    assert formulation is not None
    assert formulation.scratch == 1 << 20
    formulation.steps[0].bind(device, Call((0,) * 5, (0,) * 5, 0))()
    assert found == runs


def test_counters_are_zeros_that_nobody_else_has() -> None:
    """However many there are; what was given back is taken again."""
    counters = program.Counters(Device("cpu"))
    first, second = counters.take(3), counters.take(40)
    assert (ctypes.c_uint32 * 256).from_address(first.pointer)[:] == [0] * 256
    assert second.pointer - first.pointer == 128
    many = [first, second, *(counters.take(counters.COUNT // 5) for _ in range(9))]
    ends = sorted((b.pointer, b.pointer + b.nbytes) for b in many)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    place = second.pointer
    del second, many[1]
    assert counters.take(3).pointer not in (place, first.pointer)
    assert counters.take(33).pointer == place
