"""Untrusted files: mutants of valid ones, and how the readers handle them.

    python -m tests.helpers.hostile_files COUNT SEED      prints, as JSON, the faults, and how many were refused
    python -m tests.helpers.hostile_files show SEED NUMBER FILE    writes one mutant, and prints its reader's result

Each mutant is made from a valid file of one format: bits, lengths and parts of its bytes are changed, or, deeper,
values of its JSON, opcodes of its pickle or members of its archive, with corrected checksums. A worker
reads one after another, and is watched: a crash, more than 10 s, more memory than twice the file plus 256 MiB, an
undocumented error, an opened program, socket or file, and a change missed by the checksums are faults.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lamina as lm
import lamina.cudnn.database  # planning anew imports it, which imports Python's gzip
from lamina import nn, ops, optim
from lamina.files import WeightsError, load_torch, load_weights, save_torch, save_weights
from lamina.files.safetensors_file import _seal
from lamina.graph.ir.serialize import GraphFileError
from lamina.graph.ir.serialize import load as load_graph
from lamina.graph.ir.serialize import save as save_graph
from lamina.infer import Inferer
from lamina.infer import load as load_plan
from lamina.replay.errors import PlanFileError
from lamina.replay.file import MAGIC as PLAN_MAGIC
from lamina.runtime import NoGpuError, OutOfMemoryError
from lamina.runtime._cuda import import_beside
from lamina.spec import DTypeError
from lamina.train import load_checkpoint, save_checkpoint
from lamina.train.checkpoint import CheckpointError
from lamina.train.setup import ResumeError
from tests.helpers import ROOT, pickles, torch_files

SECONDS, EXTRA_BYTES = 10, 256 << 20
#: Forbidden while a file is read, by the names of Python's audit events.
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.Popen",
    "pickle.find_class",
    "marshal.loads",
    "socket.",
    "shutil.",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.putenv",
    "webbrowser.",
    "urllib.",
    "builtins.input",
)
SECRET = "secret.safetensors"
INTERESTING = (
    0,
    1,
    2,
    7,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    2**31,
    2**40,
    2**62,
    2**63,
    2**64,
    2**70,
    10**300,
    0.5,
    1e308,
    "",
    "F64",
    "../" + SECRET,
    "/etc/passwd",
    "cpu",
    "cuda",
    "relu",
    "\x00",
    "é" * 9,
    [],
    {},
    [[]],
    [2**40, 2**40],
    [0, 0],
    "x" * 100_000,
)


class Format(NamedTuple):
    """A file format: a valid file, its reader, permitted errors, whether every change is detected."""

    suffix: str
    sound: bytes
    read: Callable[[Path], Any]
    errors: tuple[type[BaseException], ...]
    checked: bool = False
    rewrite: Callable[[random.Random, bytes], bytes] | None = None


# -------------------------------------------------------------------------------------------------------- sound files


def network() -> nn.Module:
    nn.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5)
    )


def training() -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return lm.train_step(net, ops.cross_entropy, optim.Adam(lr=0.1), device="cpu", backend="reference")


def state() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {f"layer{i}.weight": rng.standard_normal((8, 16)).astype(np.float32) for i in range(6)}
    return found | {
        "mask": rng.random(9) > 0.5,
        "half": rng.random(20).astype(np.float16),
        "count": np.array(5),
    }


def bytes_of(folder: Path, write: Callable[[Path], Any]) -> bytes:
    write(folder / "sound")
    return (folder / "sound").read_bytes()


def formats(folder: Path) -> dict[str, Format]:
    """Every format with a valid file; folder: for accompanying files."""
    net, weights = network(), state()
    (folder.parent / SECRET).write_bytes(
        bytes_of(folder, lambda p: lm.save_safetensors({"w": np.ones(3)}, p))
    )
    save_weights(weights, folder / "shard.safetensors", shard_bytes=2000)
    shared = {
        "model": {**weights, "tied": weights["layer0.weight"], "turned": weights["layer1.weight"].T},
        "epoch": 3,
        "rates": [0.1, (1, None)],
        "note": "é",
        "dtype": lm.float16,
    }
    step = training()
    step(np.ones((4, 6), np.float32), np.zeros(4, np.int64))

    def plan(path: Path) -> None:
        with Inferer(net.eval(), device="cpu", contexts=1) as inferer:
            inferer(np.ones((1, 3, 8, 8), np.float32))
            inferer.save(path)

    def answer(path: Path) -> None:
        load_plan(path, contexts=1).close()

    def graph(path: Path) -> None:
        save_graph(lm.trace(net.eval(), lm.Spec((1, 3, 8, 8), lm.float32)), path)

    weights_errors = (WeightsError, KeyError, DTypeError, OSError)
    torch = {
        f"torch, {way}": Format(".pt", data, load_torch, (WeightsError,), way != "legacy", rewrite_torch)
        for way, data in torch_files.files().items()
    }
    return {
        "safetensors": Format(
            ".safetensors",
            bytes_of(folder, lambda p: lm.save_safetensors(weights, p)),
            load_weights,
            (WeightsError,),
            True,
            rewrite_safetensors,
        ),
        "safetensors of others": Format(
            ".safetensors", unsealed(weights), load_weights, (WeightsError,), False, rewrite_safetensors
        ),
        "index": Format(
            ".safetensors.index.json",
            (folder / "shard.safetensors.index.json").read_bytes(),
            load_weights,
            weights_errors,
            False,
            rewrite_index,
        ),
        "own torch": Format(
            ".pt",
            bytes_of(folder, lambda p: save_torch(shared, p)),
            load_torch,
            (WeightsError,),
            True,
            rewrite_torch,
        ),
        **torch,
        "graph": Format(
            ".graph", bytes_of(folder, graph), load_graph, (GraphFileError,), True, rewrite_graph
        ),
        "checkpoint": Format(
            ".ckpt",
            bytes_of(folder, lambda p: save_checkpoint(p, step)),
            lambda p: load_checkpoint(p, step),
            (WeightsError, CheckpointError, ResumeError),
            True,
            rewrite_checkpoint,
        ),
        "plan": Format(
            ".plan",
            bytes_of(folder, plan),
            answer,
            (PlanFileError, OutOfMemoryError, NoGpuError),
            True,
            rewrite_plan,
        ),
    }


def unsealed(weights: dict[str, np.ndarray]) -> bytes:
    """A safetensors file without checksums, as written by other programs."""
    facts, data = {}, b""
    for name, array in weights.items():
        code = {"float32": "F32", "bool": "BOOL", "float16": "F16", "int64": "I64"}[array.dtype.name]
        facts[name] = {
            "dtype": code,
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(facts).encode()
    return struct.pack("<Q", len(text)) + text + data


# ------------------------------------------------------------------------------------------------- changes of bytes


def flip(rng: random.Random, data: bytearray) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def truncate(rng: random.Random, data: bytearray) -> bytes:
    return bytes(data[: rng.choice((rng.randrange(len(data)), rng.randrange(100), len(data) - 1))])


def extend(rng: random.Random, data: bytearray) -> bytes:
    return bytes(data) + rng.choice((b"\x00", rng.randbytes(40), bytes(data[:200])))


def number(rng: random.Random, data: bytearray) -> bytes:
    """A length or offset, most likely near the beginning or end."""
    size = rng.choice((1, 2, 4, 8))
    place = rng.choice((rng.randrange(64), rng.randrange(len(data)), len(data) - 1 - rng.randrange(400)))
    place = max(0, min(place, len(data) - size))
    data[place : place + size] = (rng.choice(INTERESTING) % (1 << 8 * size)).to_bytes(
        size, rng.choice(("little", "big"))
    )
    return bytes(data)


def move(rng: random.Random, data: bytearray) -> bytes:
    """A part is removed, duplicated, zeroed, or moved."""
    first, size = rng.randrange(len(data)), rng.choice((1, 4, 16, 200))
    part, to = bytes(data[first : first + size]), rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            del data[first : first + size]
        case 1:
            data[first:first] = part
        case 2:
            data[first : first + size] = bytes(len(part))
        case _:
            data[to : to + len(part)] = part
    return bytes(data)


def digits(rng: random.Random, data: bytearray) -> bytes:
    """A number in a text becomes another one."""
    places = [i for i, c in enumerate(data[:20_000]) if chr(c).isdigit()]
    if places:
        place = rng.choice(places)
        data[place : place + 1] = str(rng.choice(INTERESTING)).encode()
    return bytes(data)


def nest(rng: random.Random, data: bytearray) -> bytes:
    """Very deep or wide containers in place of a value."""
    place = rng.randrange(min(len(data), 3000))
    what = rng.choice((b"[", b"{", b"(", b"}", b"]", b'{"a":', b"[]", b"{},"))
    data[place:place] = what * rng.choice((100, 10_000, 300_000))
    return bytes(data)


BYTES = (flip, flip, flip, truncate, extend, number, number, move, digits, nest)


# ---------------------------------------------------------------------------------- changes with checksums made right


def change_json(rng: random.Random, value: Any) -> Any:
    """The value with one place in it changed."""
    places: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        holder = left.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                left.append(holder[key])
    if not places:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    other, where = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1:
            holder[key] = json.loads(json.dumps(other[where]))
        case 2:
            holder[key] = json.loads("[" * 900 + "]" * 900)
        case 3 if isinstance(holder, dict):
            holder[rng.choice(("../" + SECRET, "", "x", "__metadata__"))] = holder[key]
        case _:
            holder[key] = rng.choice(VALUES)
    return value


def safetensors_with(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    length = int.from_bytes(data[:8], "little")
    facts = json.loads(data[8 : 8 + length])
    texts = facts.get("__metadata__", {})
    sealed = "sha256" in texts
    facts = change(facts)
    if sealed and isinstance(facts, dict) and isinstance(facts.get("__metadata__"), dict):
        facts["__metadata__"].pop("sha256", None)
        facts["__metadata__"]["sha256"] = _seal(facts)
    text = json.dumps(facts).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def rewrite_safetensors(rng: random.Random, data: bytes) -> bytes:
    return safetensors_with(data, lambda facts: change_json(rng, facts))


def inner_json(key: str) -> Callable[[random.Random, bytes], bytes]:
    """Changes in the JSON text embedded in the header."""

    def rewrite(rng: random.Random, data: bytes) -> bytes:
        def change(facts: dict[str, Any]) -> Any:
            inner = change_json(rng, json.loads(facts["__metadata__"][key]))
            facts["__metadata__"][key] = json.dumps(inner)
            return facts

        return safetensors_with(data, change) if rng.random() < 0.8 else rewrite_safetensors(rng, data)

    return rewrite


rewrite_graph, rewrite_checkpoint = inner_json("graph"), inner_json("lamina")


def rewrite_index(rng: random.Random, data: bytes) -> bytes:
    return json.dumps(change_json(rng, json.loads(data))).encode()


def rewrite_plan(rng: random.Random, data: bytes) -> bytes:
    length = int.from_bytes(data[16:24], "little")
    start = 56 + length + -(56 + length) % 4096
    text = json.dumps(change_json(rng, json.loads(data[56 : 56 + length]))).encode()
    head = PLAN_MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return head + bytes(-len(head) % 4096) + data[start:]


#: Opcodes inserted into a pickle.
CODE = (
    b"cos\nsystem\n(S'touch ran'\ntR",
    b"c__builtin__\neval\n(S'1'\ntR",
    b"(S'touch ran'\nios\nsystem\n",
    b"\x82\x01",
    b"cos\nsystem\n)\x81",
    b"cbuiltins\nexec\nX\x01\x00\x00\x00x\x85R",
    b"}b",
    b"]" * 5000,
    b"(" * 5000,
    b"2" * 5000,
    b"\x8a\xff",
    b"\x8b\xff\xff\xff\x7f",
    b"B\xff\xff\xff\xff",
    b"X\xff\xff\xff\x7f",
    b"r\xff\xff\xff\xff",
    b"Q",
    b"0",
    b"ctorch.storage\n_load_from_bytes\nB\x01\x00\x00\x00x\x85R",
    b"cposixpath\njoin\n",
)


def rewrite_torch(rng: random.Random, data: bytes) -> bytes:
    if not data.startswith(b"PK"):
        place = rng.randrange(30, 2000)
        return data[:place] + rng.choice(CODE) + data[place + rng.choice((0, 1, 5)) :]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        held = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    method = zipfile.ZIP_STORED
    match rng.randrange(6):
        case 0:
            held[rng.choice(list(held))] = bytes(1 << 22)
            method = zipfile.ZIP_DEFLATED
        case 1:
            name = rng.choice(list(held))
            held[rng.choice(("../x", "data/../data.pkl", "/etc/passwd", "data/99", name))] = held.pop(name)
        case 2:
            name = rng.choice([n for n in held if n.startswith("data/")])
            held[name] = held[name][: rng.randrange(len(held[name]) + 1)]
        case _:
            text = bytearray(held["data.pkl"])
            if rng.random() < 0.5:
                place = rng.randrange(2, len(text))
                text[place : place + rng.choice((0, 1, 5))] = rng.choice(CODE)
                held["data.pkl"] = bytes(text)
            else:
                held["data.pkl"] = rng.choice((flip, number, move, digits, truncate))(rng, text)
    return pickles.archive(held.pop("data.pkl", b""), held, method)


def mutant(kinds: dict[str, Format], seed: int, index: int) -> tuple[str, bytes, bool]:
    """The format, the file, and whether its checksums were corrected."""
    rng = random.Random(seed * 1_000_003 + index)
    name = list(kinds)[index % len(kinds)]
    kind = kinds[name]
    if kind.rewrite is not None and rng.random() < 0.5:
        return name, kind.rewrite(rng, kind.sound), True
    data = kind.sound
    for _ in range(rng.choice((1, 1, 1, 3))):
        data = rng.choice(BYTES)(rng, bytearray(data or b"\x00" * 8))
    return name, data, False


# ------------------------------------------------------------------------------------------------------------ reading


class TooSlow(BaseException):
    """A reader took too long."""


def content(found: Any) -> Any:
    """The contents read, in comparable form."""
    if isinstance(found, dict):
        return {k: content(v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [content(v) for v in found]
    return (found.dtype, found.shape, found.numpy().tobytes()) if isinstance(found, lm.Tensor) else str(found)


class Watch:
    """Records audit events while a file is read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on, self.seen, self.imports = str(folder), False, list[str](), False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "import":  # importing a standard module opens its code
            self.imports = str(arguments[0]).startswith(("encodings", "lamina"))
            if not self.imports:
                self.seen.append(f"import {arguments[0]}")
        if event.startswith(FORBIDDEN) and not (event == "marshal.loads" and self.imports):
            self.seen.append(event)
        if event == "open" and isinstance(arguments[0], str | bytes | Path):
            path, flags = os.fsdecode(arguments[0]), arguments[2]
            inside = os.path.realpath(path).startswith(os.path.realpath(self.folder) + os.sep)
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or (
                path.startswith(self.folder) and not inside
            ):
                self.seen.append(f"open {path}")
            if path.endswith("passwd"):
                self.seen.append(f"open {path}")


def judge(kind: Format, path: Path, rewritten: bool, wanted: Any, watch: Watch) -> tuple[str, str]:
    """How a file was handled ("refused", "read"), or the fault."""
    watch.seen.clear()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    watch.on = True
    try:
        found = kind.read(path)
        answer = ("read", "")
    except kind.errors as error:
        answer = ("refused", type(error).__name__)
    except TooSlow:
        answer = ("slow", "")
    except BaseException as error:
        answer = ("undocumented", f"{type(error).__name__}: {error}"[:300])
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    if watch.seen:
        return "ran", ", ".join(watch.seen)
    if answer[0] == "read" and kind.checked and not rewritten and content(found) != wanted:
        return "unfound", "a change was not found"
    return answer


def peak() -> int:
    """Peak memory of the process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def work(folder: Path, seed: int, first: int, last: int) -> None:
    """Read mutants one after another; a line before and after each."""

    def slow(*_: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, slow)
    kinds = formats(folder)
    wanted = {}
    for name, kind in kinds.items():
        (folder / f"mutant{kind.suffix}").write_bytes(kind.sound)
        wanted[name] = content(kind.read(folder / f"mutant{kind.suffix}"))
    os.chdir(folder)
    import_beside()  # a plan for a GPU imports NVIDIA's modules
    watch, base = Watch(folder), peak()
    for index in range(first, last):
        name, data, rewritten = mutant(kinds, seed, index)
        path = folder / f"mutant{kinds[name].suffix}"
        path.write_bytes(data)
        print(f"{index} {name}", flush=True)
        before = max(peak(), base)
        what, why = judge(kinds[name], path, rewritten, wanted[name], watch)
        if before < peak() > base + 2 * len(data) + EXTRA_BYTES:
            what, why = "memory", f"{peak() - base >> 20} MiB for a file of {len(data)} bytes"
        if (folder / "ran").exists():
            what, why = "ran", "a file was made"
            (folder / "ran").unlink()
        print(json.dumps([index, name, what, why]), flush=True)


def run(count: int, seed: int, first: int = 0) -> dict[str, Any]:
    """Read this many mutants in workers; the outcomes, and the faults."""
    faults: list[Any] = []
    taken: Counter[str] = Counter()
    last = first + count
    while first < last:
        with tempfile.TemporaryDirectory() as above:
            folder = Path(above) / "in"
            folder.mkdir()
            command = [
                sys.executable,
                "-m",
                "tests.helpers.hostile_files",
                "work",
                str(folder),
                *map(str, (seed, first, last)),
            ]
            environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True
            ) as worker:
                first = _follow(worker, first, last, taken, faults)
    return {"count": count, "taken": dict(taken), "faults": faults}


def _follow(worker: Any, first: int, last: int, taken: Counter[str], faults: list[Any]) -> int:
    """Record a worker's lines until it ends; the mutant to continue with."""
    begun = None
    while True:
        if not select.select([worker.stdout], [], [], 60 + SECONDS)[0]:
            worker.kill()
        line = worker.stdout.readline()
        if not line:
            break
        if line.startswith("["):
            index, name, what, why = json.loads(line)
            taken[f"{name}: {what}"] += 1
            if what not in ("read", "refused"):
                faults.append([index, name, what, why])
            begun, first = None, index + 1
        else:
            begun = line.split(" ", 1)
    worker.wait()
    if begun is None and first < last:
        raise RuntimeError(f"the worker ended with {worker.returncode} outside of a file")
    if begun is not None:
        faults.append([int(begun[0]), begun[1].strip(), "crash", str(worker.returncode)])
        return int(begun[0]) + 1
    return first


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    elif sys.argv[1] == "show":
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "in").mkdir()
            every = formats(Path(place) / "in")
            which, text, _ = mutant(every, int(sys.argv[2]), int(sys.argv[3]))
            file = Path(sys.argv[4] + every[which].suffix)
            file.write_bytes(text)
            print(which, zlib.crc32(text), len(text))
            print(every[which].read(file))
    else:
        print(json.dumps(run(*map(int, sys.argv[1:])), indent=1))
