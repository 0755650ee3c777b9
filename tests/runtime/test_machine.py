"""Machines as values: their files, what is read off a device, what is estimated; nothing of one machine elsewhere."""

import ast
import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina as lm
from lamina.runtime import Device, Machine, NoGpuError, machine
from lamina.runtime.machine import FILES
from tests.helpers import sources
from tests.helpers.planned import H200, KINDS


@pytest.mark.parametrize("name", Machine.names())
def test_files_are_whole_and_plausible(name: str) -> None:
    """The rates are near what clocks and units say; where they come from is told."""
    found = Machine.named(name)
    assert found.origin
    assert found.shared_memory + found.reserved_shared_memory == found.multiprocessor_shared_memory
    assert found.registers == 65536
    estimated = replace(found, flops={}, bandwidth=0.0)
    for dtype, rate in found.flops.items():
        assert 0.35 < estimated.rate(dtype) / rate < 2, dtype
    assert 0.7 < estimated.bandwidth / found.bandwidth < 1.1


def test_architectures() -> None:
    targets = {"a100": "sm_80", "h100": "sm_90a", "h200": "sm_90a", "b200": "sm_100a", "rtx5090": "sm_120a"}
    for name, target in targets.items():
        assert Machine.named(name).target == target
    assert Machine.named("b200").capability == 100


def test_machines_are_values() -> None:
    one, two = Machine.named("h200"), Machine.from_file(FILES / "h200.json")
    assert one == two
    assert hash(one) == hash(two)
    assert one != Machine.named("h100")
    assert replace(one, multiprocessors=60) != one
    assert Machine.named() == one


def test_names_and_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'h300' is none of a100, b200, .* nor a property file"):
        Machine.named("h300")
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"name": "mine", "arch": "sm_90"}))
    with pytest.raises(ValueError, match=r"mine\.json lacks multiprocessors; the fields are arch"):
        Machine.named(str(file))
    file.write_text(json.dumps({"name": "mine", "arch": "sm_90", "multiprocessors": 4, "cores": 3}))
    with pytest.raises(ValueError, match="has no meaning for cores"):
        Machine.from_file(file)
    for text in ("", "{", "[1, 2]", "3", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"mine\.json is not a JSON object of a machine's fields"):
            Machine.from_file(file)
    file.write_text(json.dumps({"name": "mine", "arch": "sm_90", "multiprocessors": 4, "clock": 10**9}))
    assert Machine.named(str(file)).rate("bfloat16") == 4 * 1e9 * 4096 * 0.75


def attributes(machine: Machine, name: str) -> dict[str, object]:
    """A machine as cuda.core tells a device's properties."""
    return {
        "name": name,
        "arch": machine.arch,
        "multiprocessor_count": machine.multiprocessors,
        "max_shared_memory_per_block_optin": machine.shared_memory,
        "max_shared_memory_per_multiprocessor": machine.multiprocessor_shared_memory,
        "reserved_shared_memory_per_block": machine.reserved_shared_memory,
        "max_registers_per_multiprocessor": machine.registers,
        "max_threads_per_multiprocessor": machine.threads,
        "max_blocks_per_multiprocessor": machine.blocks,
        "l2_cache_size": machine.l2_bytes,
        "total_memory": machine.memory_bytes,
        "clock_rate": machine.clock // 1000,
        "memory_clock_rate": machine.memory_clock // 1000,
        "global_memory_bus_width": machine.bus_bits,
    }


@pytest.mark.parametrize("name", Machine.names())
def test_a_device_that_is_known_is_its_file(name: str) -> None:
    known = Machine.named(name)
    found = Machine.from_properties(attributes(known, known.name))
    assert found == known
    assert known.origin in found.origin


def test_an_unknown_device_is_estimated() -> None:
    """A model without a file, a part of one that has a file, and an architecture that is not known yet."""
    known = Machine.named("h200")
    other = Machine.from_properties(attributes(known, "another model"))
    assert "estimated" in other.origin
    assert 0.7 < other.rate("bfloat16") / known.rate("bfloat16") < 1.3
    part = Machine.from_properties(attributes(replace(known, multiprocessors=16), known.name))
    assert part.rate("float32") == pytest.approx(other.rate("float32") * 16 / 132)
    later = Machine.from_properties(attributes(replace(known, arch="sm_999"), "a later one"))
    assert later.rate("bfloat16") > 0


#: Architecture, multiprocessors, boost clock in MHz and dense peaks in TFLOP/s of a model: half types with float32
#: sums, TF32, float32, float64 (NVIDIA's white papers of Volta, Turing, Ampere, Hopper and Blackwell). H100's peaks
#: are given at two clocks; of B200 those without tensor cores are not given exactly.
PEAKS = {
    "Tesla V100": ("sm_70", 80, 1530, (125, 15.7, 15.7, 7.8)),
    "Tesla T4": ("sm_75", 40, 1590, (65.1, 8.1, 8.1, 0.254)),
    "A100": ("sm_80", 108, 1410, (312, 156, 19.5, 19.5)),
    "GeForce RTX 3090": ("sm_86", 82, 1695, (71, 35.6, 35.6, 0.556)),
    "GeForce RTX 4090": ("sm_89", 128, 2520, (165.2, 82.6, 82.6, 1.29)),
    "H100, tensor cores": ("sm_90", 132, 1830, (989.4, 494.7)),
    "H100": ("sm_90", 132, 1980, (1070.5, 535.2, 66.9, 66.9)),
    "B200": ("sm_100", 148, 1856, (2250, 1125)),
    "B300": ("sm_103", 148, 1856, (2250, 1125)),
    "GeForce RTX 5090": ("sm_120", 170, 2407, (209.5, 104.8, 104.8, 1.637)),
}


@pytest.mark.parametrize("name", PEAKS)
def test_estimated_rates_are_parts_of_the_published_peaks(name: str) -> None:
    arch, multiprocessors, clock, peaks = PEAKS[name]
    found = Machine(name, arch, multiprocessors, clock=clock * 10**6, memory_clock=10**9, bus_bits=512)
    for dtype, peak in zip(("bfloat16", "tf32", "float32", "float64"), peaks, strict=False):
        assert found.flops[dtype] == pytest.approx(0.75e12 * peak, rel=0.02), dtype
    assert found.flops["int8"] == found.flops["float8_e4m3fn"] == 2 * found.flops["float16"]
    assert found.bandwidth == 0.875 * 128e9  # 64 bytes, twice per clock
    assert found.launch_seconds == 3e-6


def test_seconds() -> None:
    """The longer of arithmetic and memory traffic; TF32 only where it is allowed; other types count as float32."""
    found = Machine.named("h200")
    assert found.seconds(790e12, 1.0, "bfloat16") == pytest.approx(1.0)
    assert found.seconds(1.0, 4.3e12, "bfloat16") == pytest.approx(1.0)
    assert found.rate("float32", tf32=True) / found.rate("float32") == pytest.approx(395 / 67)
    assert found.seconds(395e12, 1.0, "float32", tf32=True) == pytest.approx(1.0)
    assert found.seconds(67e12, 1.0, "float32") == pytest.approx(1.0)
    assert found.rate("int16") == found.rate("float32")


def test_a_device_may_stand_for_a_machine() -> None:
    """A value like others, unlike the GPU itself; what needs the GPU says that it is not there."""
    a100 = KINDS["a100"]
    assert a100 == Device(a100) == Device("cuda", machine=Machine.named("a100")) != H200
    assert a100 != Device("cuda")
    assert len({a100, H200, Device("cuda")}) == 3
    assert pickle.loads(pickle.dumps(a100)) == a100
    assert repr(a100) == "Device('cuda:0', machine='NVIDIA A100-SXM4-80GB')"
    assert (str(a100), a100.name, a100.machine.multiprocessors) == ("cuda:0", "NVIDIA A100-SXM4-80GB", 108)
    assert lm.device(a100) is not None
    with pytest.raises(NoGpuError, match="stands for a GPU that is not there: plans for it can be made"):
        a100.allocate(1)
    with pytest.raises(ValueError, match="a CPU is planned for as it is, got machine='NVIDIA A100"):
        Device("cpu", machine=a100.machine)


def test_the_host_is_a_machine() -> None:
    found = Device("cpu").machine
    assert found.multiprocessors >= 1
    assert (found.capability, found.origin) == (0, "measured")
    assert found is Device("cpu").machine


def test_measured_rates_are_work_by_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 n³ FLOP of a product, and 12 bytes an element of a sum in place; the best of the measurements counts."""
    with monkeypatch.context() as patched:
        times: list[int] = []

        def best(run: Callable[[], Any]) -> float:
            run()
            times.append(len(times))
            return float(len(times))

        patched.setattr(machine, "_best", best)
        found = machine.measured("mine", "x86_64", 3, 1 << 30)
    assert found.flops == {"float32": 2 * 768**3, "float64": 768**3}
    assert found.bandwidth == 12 * (1 << 23) / 3
    assert (found.name, found.arch, found.multiprocessors, found.memory_bytes) == (
        "mine",
        "x86_64",
        3,
        1 << 30,
    )
    clock = iter([0.0, 3.0, 10.0, 12.0, 20.0, 25.0, *range(30, 100, 3)])
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    ran: list[int] = []
    assert machine._best(lambda: ran.append(1)) == 2.0
    assert len(ran) > 2


# ------------------------------------------------------------------------------ one place for a machine's numbers

#: Numbers of one GPU: multiprocessors (and usual multiples), shared memory of a block and of a multiprocessor.
NUMBERS = {132, 132 * 2, 132 * 3, 132 * 4, 132 * 8, 132 * 16, 227 << 10, 228 << 10, 227, 228}
MODELS = re.compile(r"\b(A100|H100|H200|B200|GB200|L40S?|RTX ?\d{4}|RTX PRO|V100)\b")


def numbers(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, int]]:
    for node in nodes:
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in NUMBERS:
            yield node.lineno, node.value


def violations(source: str, nodes: Iterable[ast.AST]) -> list[str]:
    found = [f"line {line}: {value}" for line, value in numbers(nodes)]
    for number, line in enumerate(source.split("\n"), 1):
        found += [f"line {number}: {name}" for name in MODELS.findall(line)]
    return found


def test_no_machine_outside_of_the_files() -> None:
    """Tilings, costs and limits ask the machine; no GPU is named in code, comments or documents of code."""
    found = {}
    for path in sources.files():
        if path.split("/")[-2:-1] not in (
            ["c"],
            ["models"],
        ):  # constants of C and widths of layers may be as large
            found[path] = violations(sources.text(path), sources.nodes(path))
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_planted_number_is_caught() -> None:
    planted = {
        "_BLOCKS = 132 * 8": ["line 1: 132"],
        "ROOM = 232448": ["line 1: 232448"],
        'def f():\n    """For an H200."""': ["line 2: H200"],
        "parameters = 132_863_336": [],
    }
    assert {source: violations(source, ast.walk(ast.parse(source))) for source in planted} == planted
