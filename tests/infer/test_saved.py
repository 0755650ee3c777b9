"""A saved plan answers as the Inferer did, in every bit, without what makes plans; a changed one is refused."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina._tree import leaves
from lamina.infer import Inferer, PlanFileError, load
from lamina.infer import saved as saved_plans
from lamina.replay.file import MAGIC
from lamina.runtime import OutOfMemoryError
from lamina.spec import ShapeError
from tests.helpers import ROOT, slow_from
from tests.helpers.many_threads import in_threads, small_network
from tests.infer.test_inferer import CASES, floats


def bits(answer: Any) -> list[bytes]:
    return [np.asarray(x if isinstance(x, np.ndarray) else x.numpy()).tobytes() for x in leaves(answer)]


def saved(net: nn.Module, path: Path, *inputs: Any, portable: bool = True, **more: Any) -> list[list[bytes]]:
    """Save what an Inferer answers for these inputs."""
    with Inferer(net, device="cpu", **more) as inferer:
        for x in inputs:
            inferer(x)
        inferer.save(path, portable=portable)
        return [bits(inferer(x)) for x in inputs]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nn.manual_seed(0)
    path = tmp_path_factory.mktemp("plans") / "small.plan"
    saved(small_network(), path, floats(0, 1, 3, 16, 16), max_batch=4)
    return path


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_networks_of_phones_come_back(precision: str, tmp_path: Path) -> None:
    """Filters of groups have an axis more than images; casts around what runs in float32 are planned again."""
    nn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU6(), nn.Conv2d(32, 32, 3, 2, 1, groups=32),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 8),
    ).eval()  # fmt: skip
    x = floats(0, 1, 3, 64, 64)
    (wanted,) = saved(net, tmp_path / "p", x, portable=False, precision=precision)
    with load(tmp_path / "p") as found:
        assert bits(found(x)) == wanted


@pytest.mark.feature("F113", "B036")
@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_the_inferer(name: str, max_batch: int, tmp_path: Path) -> None:
    make, request, more = CASES[name]
    nn.manual_seed(0)
    inputs = [request(k) for k in range(4)]
    wanted = saved(make(), tmp_path / "p", *inputs, max_batch=max_batch, **more)
    with load(tmp_path / "p") as found:
        assert not found.planned_anew
        for x, y in zip(inputs, wanted, strict=True):
            answer = found(x)
            assert all(type(leaf) is np.ndarray for leaf in leaves(answer))
            assert bits(answer) == y
            assert bits(found.submit(x).result(30)) == y

        def work(k: int) -> None:
            for i in np.random.default_rng(k).integers(0, 4, 20):
                assert bits(found(inputs[i])) == wanted[i]

        in_threads(work, 4)
        assert found.statistics().answered == 8 + 80
    with load(tmp_path / "p", replan=True, contexts=1) as again:
        assert again.contexts == 1


class Doubling(nn.Module):
    """Branches on a flag among its arguments."""

    def __init__(self) -> None:
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Any, twice: bool = False) -> Any:
        return self.inner(x) * (2.0 if twice else 1.0)


def test_flags_among_inputs_are_saved(tmp_path: Path) -> None:
    inputs = [(floats(0, 2, 3), True), (floats(0, 2, 3), False)]
    wanted = saved(Doubling(), tmp_path / "p", *inputs, max_batch=4)
    with load(tmp_path / "p") as found:
        assert [bits(found(x)) for x in inputs] == wanted
    assert wanted[0] != wanted[1]


class Numbered(nn.Module):
    """Its inputs and outputs are dicts with numbers as keys."""

    def forward(self, x: dict[int, Any]) -> dict[int, Any]:
        return {2: x[0] * 2.0, 3: x[1] + x[0]}


def test_dicts_with_numbers_as_keys_are_saved(tmp_path: Path) -> None:
    inputs = {0: floats(0, 2, 3), 1: floats(1, 2, 3)}
    (wanted,) = saved(Numbered(), tmp_path / "p", inputs)
    with load(tmp_path / "p") as found:
        assert bits(found(inputs)) == wanted


def test_other_inputs_name_what_was_saved(plan: Path) -> None:
    with load(plan) as found:
        assert (
            found(floats(0, 3, 3, 16, 16)).shape[0] == 3
        )  # proven for every number of samples up to the batch's
        for x in (floats(0, 5, 3, 16, 16), floats(0, 1, 3, 8, 8), floats(0, 1, 3, 16, 16).astype(np.float64)):
            with pytest.raises(ShapeError, match=r"it was saved for .*f32\[4,3,16,16\]"):
                found(x)
        with pytest.raises(ShapeError):
            found((floats(0, 1, 3, 16, 16),) * 2)
        for wrong in ("x", None, 3, [], [1.0, 2.0], object()):
            with pytest.raises(TypeError):
                found(wrong)
    with pytest.raises(RuntimeError, match="closed"):
        found(floats(0, 1, 3, 16, 16))
    with pytest.raises(TypeError, match="cannot be pickled"):
        found.__reduce__()


def test_arrays_of_any_library(plan: Path) -> None:
    x = floats(0, 1, 3, 16, 16)
    with load(plan) as found:
        wanted = bits(found(x))
        for same in (lm.tensor(x), x.astype(">f4"), np.asfortranarray(x)):
            assert bits(found(same)) == wanted


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"contexts": -1}, "contexts must be at least 1, got -1"),
        ({"max_wait_ms": -1.0}, "max_wait_ms must be at least 0"),
        ({"queue_limit": 0}, "queue_limit must be at least 1"),
        ({"when_full": "drop"}, "when_full must be"),
        ({"device": "gpu"}, "device: expected 'cpu', 'cuda' or 'cuda:N', got 'gpu'"),
    ],
)
def test_bad_arguments(plan: Path, more: dict[str, Any], text: str) -> None:
    """They are the caller's fault, not the file's."""
    with pytest.raises(ValueError, match=f"^(load: )?{text}") as found:
        load(plan, **more)
    assert not isinstance(found.value, PlanFileError)


def test_arguments_of_another_type(plan: Path) -> None:
    with pytest.raises(TypeError, match="load: contexts must be a number, got 'two'"):
        load(plan, contexts="two")  # type: ignore[arg-type]


def test_what_kernels_hold_in_bfloat16_is_saved(tmp_path: Path) -> None:
    """A mean over the pixels of a convolution is a product with ones, which the kernel brings along."""
    x = floats(0, 2, 3, 4, 4)
    net = nn.Sequential(nn.Conv2d(3, 512, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    (wanted,) = saved(net, tmp_path / "p", x, precision="bf16")
    with load(tmp_path / "p") as found:
        assert bits(found(x)) == wanted


# ---- nothing is imported that makes plans
PROBE = """
import sys
import lamina as lm, numpy as np
with lm.infer.load(sys.argv[1]) as plan:
    plan(np.zeros((1, 1, 28, 28), np.float32))
planning = ("lamina.ops", "lamina.graph", "lamina.nn", "lamina.backends", "lamina.tensors", "asyncio")
print([m for m in sys.modules if m.startswith(planning)])
"""


@pytest.mark.feature("B036")
@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_a_plan_runs_on_its_own_kind_of_device_where_there_is_one(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def existing(name: Any) -> Any:
        asked.append(name)
        return SimpleNamespace(kind=there if name == "auto" else name)

    monkeypatch.setattr(saved_plans, "existing_device", existing)
    assert saved_plans._where("cpu", None).kind == "cpu"
    assert asked == ["cpu"]  # whether there is a GPU does not matter
    assert saved_plans._where("cuda", None).kind == there
    assert saved_plans._where("cuda", "cpu").kind == "cpu"
    with pytest.raises(PlanFileError, match="a plan for a device 'tpu'"):
        saved_plans._where("tpu", None)


@pytest.mark.feature("B036")
def test_a_process_that_answers_imports_nothing_that_plans(tmp_path: Path) -> None:
    """Where every step is a library's: NumPy's meaning of an op needs the ops."""
    saved(nn.LeNet(in_channels=1, num_classes=10), tmp_path / "p", floats(0, 1, 1, 28, 28))
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "p")],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout == "[]\n"


# ---- damaged and forged files
def forged(plan: Path, change: Callable[[dict[str, Any]], None], path: Path) -> Path:
    """The plan with another header, its checksum right."""
    data = plan.read_bytes()
    length = int.from_bytes(data[16:24], "little")
    header = json.loads(data[56 : 56 + length])
    start = 56 + length + -(56 + length) % 4096
    change(header)
    text = json.dumps(header).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    path.write_bytes(head + bytes(-len(head) % 4096) + data[start:])
    return path


def holders(x: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested lists and objects."""
    for key in x if isinstance(x, dict) else range(len(x)):
        yield x, key
        if isinstance(x[key], dict | list):
            yield from holders(x[key])


VALUES = (
    None,
    -1,
    0,
    1,
    3,
    7,
    1 << 20,
    1 << 44,
    (1 << 44) + 64,
    2 << 44,
    1 << 70,
    0.5,
    "",
    "cpu",
    "relu",
    [],
    {},
    True,
)


@pytest.mark.feature("F113")
@pytest.mark.parametrize("seed", slow_from(1, range(4)))
def test_forged_files_give_typed_errors_and_no_crash(plan: Path, seed: int, tmp_path: Path) -> None:
    """In a process of its own: kernels on wrong addresses would end it."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.infer.test_saved import forge_many
print(forge_many(Path({str(plan)!r}), {seed}, Path({str(tmp_path)!r})))
"""
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, taken = map(int, done.stdout.split())
    assert refused > 60
    assert refused + taken == 150


def forge_many(plan: Path, seed: int, folder: Path) -> str:
    """Load files with one value of the header replaced; those that load must answer or raise as documented."""
    rng, refused, taken = np.random.default_rng(seed), 0, 0

    def change(header: dict[str, Any]) -> None:
        places = list(holders(header))
        holder, key = places[rng.integers(len(places))]
        holder[key] = VALUES[rng.integers(len(VALUES))]

    for _ in range(150):
        path = forged(plan, change, folder / "forged")
        try:
            found = load(path)
        except (ValueError, OutOfMemoryError):  # a PlanFileError is a ValueError
            refused += 1
            continue
        with found:
            taken += 1
            with suppress(ShapeError, TypeError, ValueError, TimeoutError):
                found(floats(0, 1, 3, 16, 16), timeout=3)
    return f"{refused} {taken}"


@pytest.mark.feature("F113")
def test_a_change_of_any_byte_is_refused(plan: Path, tmp_path: Path) -> None:
    sound, rng = plan.read_bytes(), np.random.default_rng(0)
    for place in rng.integers(0, len(sound), 60):
        changed = bytearray(sound)
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "p").write_bytes(changed)
        with pytest.raises(PlanFileError):
            load(tmp_path / "p")


# ---- kills
#: For each line that it reads it forks a writer, from a process that has imported everything and used nothing.
WRITERS = """
import os
import sys
import numpy as np
import lamina.backends.cpu
from lamina import nn
from lamina.infer import Inferer

def write(path):
    nn.manual_seed(0)
    net = nn.Linear(64, 2048)
    x = np.ones((1, 64), np.float32)
    with Inferer(net, device="cpu") as inferer:
        inferer(x)
        inferer.save(path)
        print(os.getpid(), flush=True)
        while True:
            net.weight.copy_(np.full((2048, 64), np.random.rand(), np.float32))
            inferer.refresh()
            inferer.save(path)

for _ in sys.stdin:
    writer = os.fork()
    if not writer:
        try:
            write(sys.argv[1])
        finally:  # a child must never go on as its parent
            os._exit(1)
    print(os.waitpid(writer, 0)[1], flush=True)
"""


def kills(path: Path, count: int) -> int:
    """Kill a process that saves again and again, at any time; how many plans were whole afterwards."""
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    rng, whole = np.random.default_rng(0), 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
    ) as writers:  # fmt: skip
        assert writers.stdin is not None
        assert writers.stdout is not None
        for _ in range(count):
            print(file=writers.stdin, flush=True)
            writer = int(writers.stdout.readline())
            time.sleep(rng.random() * 0.03)
            os.kill(writer, signal.SIGKILL)
            assert int(writers.stdout.readline()) == signal.SIGKILL
            with load(path) as found:
                (row,) = found(np.ones((1, 64), np.float32))
                whole += bool(np.isfinite(row).all()) and len(row) == 2048
    return whole


@pytest.mark.feature("F113")
def test_a_killed_save_leaves_a_whole_plan(tmp_path: Path) -> None:
    assert kills(tmp_path / "p", 5) == 5
    assert (
        len(list(tmp_path.iterdir())) <= 6
    )  # and parts of what was being written, which a later save removes


@pytest.mark.slow
@pytest.mark.feature("F113")
def test_a_hundred_killed_saves_leave_whole_plans(tmp_path: Path) -> None:
    assert kills(tmp_path / "p", 100) == 100


# ---- on a GPU
@pytest.mark.gpu
@pytest.mark.feature("F113", "B036")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_bits_of_the_inferer(name: str, max_batch: int, precision: str, tmp_path: Path) -> None:
    make, request, more = CASES[name]
    nn.manual_seed(0)
    inputs = [request(k) for k in range(4)]
    with Inferer(make(), device="cuda:0", max_batch=max_batch, precision=precision, **more) as inferer:
        wanted = [bits(inferer(x)) for x in inputs]
        inferer.save(tmp_path / "p")
    with load(tmp_path / "p") as found:
        assert (found.planned_anew, found.device.kind) == (False, "cuda")

        def work(k: int) -> None:
            for i in np.random.default_rng(k).integers(0, 4, 40):
                assert bits(found(inputs[i])) == wanted[i]

        in_threads(work, 8)
    (tmp_path / "p").chmod(0o666)
    with pytest.raises(PlanFileError, match="machine code"):
        load(tmp_path / "p")
    with load(tmp_path / "p", trusted=True) as again:
        assert bits(again(inputs[0])) == wanted[0]
    with load(tmp_path / "p", device="cpu", replan=True, trusted=True) as on_cpu:
        assert on_cpu.planned_anew


@pytest.mark.parametrize("nbytes", [0, 1, 24])
def test_a_device_gets_the_bytes_that_kernels_read(nbytes: int) -> None:
    """The host reads them where the file was read to; a GPU has a copy, of no more than these bytes."""
    cpu, memory = lm.Device("cpu"), np.arange(40, dtype=np.uint8)
    reading: Any = SimpleNamespace(memory=memory)
    gpu: Any = SimpleNamespace(kind="cuda", allocate=cpu.allocate)
    there, copied = (saved_plans._kept(reading, device, nbytes) for device in (cpu, gpu))
    for kept in (there, copied):
        assert kept.nbytes == nbytes
        assert kept.array((nbytes,), np.uint8).tolist() == list(range(nbytes))
    assert there.pointer == memory.ctypes.data
    memory[:] = 0
    assert copied.array((nbytes,), np.uint8).tolist() == list(range(nbytes))
