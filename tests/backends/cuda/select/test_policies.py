"""What a policy says about plans on a GPU: which engines, which choice for other sizes, which plan by name."""

import ctypes
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.transforms import upcast_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import Program
from lamina.backends.cuda.select.autotune import best
from lamina.backends.cuda.select.formulations import unwanted
from lamina.backends.reference import run_reference
from lamina.cudnn import NumericalNote
from lamina.cudnn.contest import Check, Contest
from lamina.ops.primitives import Conv, Window
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, bfloat16, channels_last, float16, float32, pack, unpack
from tests.helpers import emulator
from tests.helpers.planned import H200


class _Engine:
    def __init__(self, *notes: str) -> None:
        self.numerical_notes = frozenset(NumericalNote[f"CUDNN_NUMERICAL_NOTE_{n}"] for n in notes)


class _Config:
    def __init__(self, *notes: str) -> None:
        self.engine = _Engine(*notes)


@pytest.mark.feature("B011", "B017", "F091", "F093")
def test_policies_forbid_engines() -> None:
    tensor_core, random = _Config("TENSOR_CORE"), _Config("NONDETERMINISTIC")
    assert "TF32" in unwanted(tensor_core, float32, Policy())  # type: ignore[arg-type]
    assert unwanted(tensor_core, float32, Policy(tf32=True)) == ""  # type: ignore[arg-type]
    assert unwanted(tensor_core, bfloat16, Policy()) == ""  # type: ignore[arg-type]
    assert "TF32" in unwanted(_Config("DOWN_CONVERT_INPUTS"), float32, Policy())  # type: ignore[arg-type]
    assert unwanted(random, bfloat16, Policy()) == ""  # type: ignore[arg-type]
    assert unwanted(random, bfloat16, Policy(deterministic=True)) == "not deterministic"  # type: ignore[arg-type]
    assert "half" in unwanted(_Config("REDUCED_PRECISION_REDUCTION"), bfloat16, Policy())  # type: ignore[arg-type]


@pytest.mark.feature("F089")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_half_operands_become_float32_and_back(dtype: DType) -> None:
    """Both operands lie in scratch memory as float32, one after the other; the result is rounded once."""
    shapes = ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 5, 5))
    x, w, y = (Spec(s, dtype, channels_last(s)) for s in shapes)
    formulation = upcast_formulation(Conv, Operands(Window((1, 1), ((1, 1), (1, 1)), (1, 1)), x, w, y))
    rng = np.random.default_rng(0)
    held = [emulator.Memory(s.nbytes) for s in (x, w, y)]
    scratch = emulator.Memory(formulation.scratch)
    for memory, spec in zip(held[:2], (x, w), strict=True):
        memory.bytes[:] = rng.standard_normal(spec.numel).astype(dtype.numpy).view(np.uint8)
    call = Call((held[0].pointer, held[1].pointer), (held[2].pointer,), scratch.pointer)
    emulator.run_steps(formulation.before, call)
    places = [0, 768, 768 + 512]  # 600 and 432 bytes in multiples of 256
    for memory, spec, place in zip(held[:2], (x, w), places, strict=False):
        wide = scratch.bytes[place : place + 4 * spec.numel].view(np.float32)
        np.testing.assert_array_equal(wide, memory.bytes.view(dtype.numpy).astype(np.float32))
    result = rng.standard_normal(y.numel).astype(np.float32)
    scratch.bytes[places[2] : places[2] + 4 * y.numel] = result.view(np.uint8)
    emulator.run_steps(formulation.after, call)
    np.testing.assert_array_equal(held[2].bytes.view(dtype.numpy), result.astype(dtype.numpy))
    for memory in (*held, scratch):
        memory.check("wide")


@dataclass(frozen=True)
class Float32Conv:
    """The convolution of float32 operands that lie in scratch memory one after the other, by the definition."""

    window: Window
    specs: tuple[Spec, Spec, Spec]

    def bind(self, device: object, call: Call) -> Callable[[], None]:
        sizes = [-(-4 * s.numel // 256) * 256 for s in self.specs]
        flat = [
            np.ctypeslib.as_array((ctypes.c_float * s.numel).from_address(call.workspace + sum(sizes[:i])))
            for i, s in enumerate(self.specs)
        ]

        def run() -> None:
            x, w = (unpack(a, s.physical, s.shape) for a, s in zip(flat, self.specs[:2], strict=False))
            (y,) = run_reference(Conv(self.window), [x, w])
            flat[2][:] = pack(y, self.specs[2].physical)

        return run


@dataclass(frozen=True)
class Entry:
    label: str
    steps: tuple[Any, ...]
    workspace: int = 0


@pytest.mark.feature("F089")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("half", "wide", "winner"), [(2.0, 1.0, "wide"), (1.0, 2.0, "half")])
def test_float32_is_taken_where_it_takes_less_time(
    half: float, wide: float, winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both compute the half types' result; the clock decides."""
    for kind in (Program, Check):
        monkeypatch.setattr(kind, "load", lambda program, device: emulator.Kernel(program))
    times = {"half": half, "wide": wide}
    monkeypatch.setattr(Contest, "_time", lambda self, one, runs=0: times[one.entry.label])
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w, y = (Spec(s, bfloat16, channels_last(s)) for s in ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 5, 5)))
    operands = Operands(window, x, w, y)
    problem, formulation = conv_problem(Conv, operands, H200), upcast_formulation(Conv, operands)
    entries = [
        Entry("half", problem.plain),
        Entry(
            "wide",
            (*formulation.before, Float32Conv(window, (x, w, y)), *formulation.after),
            formulation.scratch,
        ),
    ]
    refusals: list[str] = []
    found = best(entries, Device("cpu"), [x, w], [y], 2e-2, plain=problem.plain, refusals=refusals)
    assert refusals == []
    assert found is not None
    assert (found[0].label, found[1]) == (winner, min(half, wide))
