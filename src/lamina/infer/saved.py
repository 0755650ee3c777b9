"""Inference from a saved plan: without the network, planning or compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lamina import _tree
from lamina._lazy import lazy
from lamina._tree import LEAF, Structure, key_types
from lamina._version import __version__
from lamina.infer.programs import GatheredProgram, ServedProgram, resized, spec_of
from lamina.infer.serving import ProgramUse, RequestKind, Serving, check_numbers, default_contexts
from lamina.replay.errors import OtherMachineError, PlanFileError
from lamina.replay.file import Reading
from lamina.replay.machine import differences, machine_of, steps_of
from lamina.replay.player import Player
from lamina.replay.specs import decode_spec
from lamina.runtime import Buffer, Device, copy, distrust
from lamina.runtime import device as existing_device
from lamina.spec import Policy, ShapeError, Spec

_KINDS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict, "none": type(None)}
_late = lazy(__name__, {"planned_anew": "lamina.infer.replanning"})


class SampleAxis(NamedTuple):
    """Where samples lie in an output: along an axis, with a number of indices each."""

    axis: int
    size: int


class SavedInferer(Serving):
    """Answers requests of many threads as the saved `Inferer` did; made by `lamina.infer.load`.

    It is called and queued for in the same ways, but accepts only the kinds of inputs that were saved, and returns
    NumPy arrays.

    network: the name of the network's class. device: where it runs. planned_anew: whether the plans were made here.
    """

    def __init__(
        self,
        network: str,
        device: Device,
        programs: Sequence[tuple[RequestKind, ServedProgram, Sequence[int]]],
        *,
        planned_anew: bool,
        **settings: Any,
    ) -> None:
        super().__init__(f"SavedInferer of {network}", **settings)
        self.network, self.device, self.planned_anew = network, device, planned_anew
        self._programs = {kind: program for kind, program, _ in programs}
        self._uses = {
            use.asked: use.use for kind, program, counts in programs for use in _uses(kind, program, counts)
        }

    def flattened(self, inputs: Any) -> tuple[list[Any], Structure]:
        """The arrays in the inputs, and their structure. Raises TypeError."""
        if type(inputs) is np.ndarray:
            return [_native(inputs)], LEAF
        found, structure = _tree.flatten(inputs, flags=True)
        if not found:
            raise TypeError(f"SavedInferer: there is no array in {inputs!r}")
        return [_array(x) for x in found], structure

    def spec_of(self, x: Any) -> Spec:
        """Shape and dtype of one of them."""
        return spec_of(x)

    def policy(self) -> Policy:
        """The plan's policy, independent of the current one."""
        return _POLICY

    def known(self, kind: RequestKind) -> ProgramUse | None:
        """The program for a kind of inputs, if it was saved."""
        return self._uses.get(kind)

    def made(self, kind: RequestKind, given: Sequence[Any], count: int) -> ProgramUse:
        """Programs cannot be made here. Raises ShapeError."""
        listed = "; ".join(f"{k.structure} of {', '.join(map(str, k.specs))}" for k in self._programs)
        raise ShapeError(
            f"SavedInferer of {self.network}: it was saved for {listed}, not for {kind.structure} of "
            f"{', '.join(map(str, kind.specs))}; ask the Inferer for these inputs before saving it"
        )

    def __reduce__(self) -> str:
        raise TypeError("a SavedInferer holds kernels and threads and cannot be pickled; load its file again")

    def __repr__(self) -> str:
        how = "planned anew" if self.planned_anew else "as saved"
        head = f"SavedInferer({self.network} on {self.device}, {how}; up to {self.contexts} calls at a time)"
        return "\n".join([head, *(f"  {p!r}" for p in self._programs.values())])


class _Asked(NamedTuple):
    """A kind of request, and the program that answers it."""

    asked: RequestKind
    use: ProgramUse


def _uses(kind: RequestKind, program: ServedProgram, counts: Sequence[int]) -> list[_Asked]:
    """Every kind of request that a program answers."""
    if not isinstance(program, GatheredProgram):
        return [_Asked(kind, ProgramUse(program, kind, 1))]
    found = []
    for n in counts:
        specs = [resized(s, a, n) for s, a in zip(kind.specs, program.axes, strict=True)]
        found.append(_Asked(kind._replace(specs=tuple(specs)), ProgramUse(program, kind, n)))
    return found


# ---------------------------------------------------------------------------------------------------------- loading


def check_options(
    device: Device | str | None,
    contexts: int | None,
    max_wait_ms: float | None,
    queue_limit: int | None,
    when_full: str | None,
) -> None:
    """Raise TypeError or ValueError for an invalid argument of `load`."""
    if device not in (None, "auto"):
        Device(device)
    given = {"contexts": (contexts, 1), "max_wait_ms": (max_wait_ms, 0), "queue_limit": (queue_limit, 1)}
    numbers = {name: (value, least) for name, (value, least) in given.items() if value is not None}
    check_numbers("load", "wait" if when_full is None else when_full, **numbers)


def loaded(
    reading: Reading,
    device: Device | str | None,
    replan: bool,
    trusted: bool,
    contexts: int | None,
    max_wait_ms: float | None,
    queue_limit: int | None,
    when_full: str | None,
) -> SavedInferer:
    """A file's programs, ready to answer; the arguments are those of `load`."""
    header = reading.header
    settings: dict[str, Any] = {
        "batch_axis": int(header["serving"]["batch_axis"]),
        "max_batch": int(header["serving"]["max_batch"]),
    }
    given = {"max_wait_ms": max_wait_ms, "queue_limit": queue_limit, "when_full": when_full}
    settings |= {k: header["serving"][k] if v is None else v for k, v in given.items()}
    where = _where(header["machine"]["device"], device)
    settings["contexts"] = contexts or default_contexts(where, settings["max_batch"])
    check_numbers(
        "load",
        settings["when_full"],
        max_wait_ms=(settings["max_wait_ms"], 0),
        queue_limit=(settings["queue_limit"], 1),
    )
    others = _differences(header, where)
    if not others:
        try:
            programs = _players(reading, where, trusted, settings["contexts"])
        except OtherMachineError as error:
            others = [str(error)]
    if others:
        programs = _planned_anew(reading, where, replan, others, settings["contexts"])
    return SavedInferer(str(header["network"]), where, programs, planned_anew=bool(others), **settings)


def _where(kind: Any, device: Device | str | None) -> Device:
    """The requested device, or the first of a kind."""
    if kind not in ("cpu", "cuda"):
        raise PlanFileError(f"a plan for a device {kind!r}")
    if device is not None:
        return existing_device(device)
    return existing_device(kind) if kind == "cpu" or existing_device("auto").kind == "cuda" else Device("cpu")


def _differences(header: Mapping[str, Any], device: Device) -> list[str]:
    """The reason why a plan cannot be used unchanged."""
    if header["lamina"] != __version__:
        return [f"it was written by Lamina {header['lamina']}, this is {__version__}"]
    if header["machine"]["device"] != device.kind:
        return [f"it is for {header['machine']['device']}, not for {device}"]
    return differences(header["machine"], machine_of(device, header["machine"]))


def _players(
    reading: Reading, device: Device, trusted: bool, contexts: int
) -> list[tuple[RequestKind, ServedProgram, Sequence[int]]]:
    """The programs of a file, as they were saved."""
    kept_bytes = reading.header["kept"]
    reading.part([0, kept_bytes])
    if device.kind == "cuda":
        why = "" if trusted else distrust(Path(reading.path))
        if why:
            raise PlanFileError(
                f"{reading.path}: it holds a GPU's machine code, but {why}; trusted=True takes it"
            )
        device.platform  # noqa: B018 - opened while the file is read
        reading.finish()
    kept = _kept(reading, device, kept_bytes)
    steps = steps_of(device, reading.part)
    found = []
    for data in reading.header["programs"]:
        player = Player(data["plays"], kept, device, steps, contexts)
        found.append(program_of(data, player, reading))
    reading.finish()
    return found


def _kept(reading: Reading, device: Device, nbytes: int) -> Buffer:
    """The weights and constants that kernels read, on the device."""
    memory = reading.memory
    if device.kind == "cpu":
        return Buffer.borrow(memory.ctypes.data, nbytes, device, memory)
    kept = device.allocate(nbytes)
    if nbytes:
        copy(kept, memory[:nbytes], nbytes)
    return kept


def program_of(
    data: Mapping[str, Any], executable: Any, reading: Reading
) -> tuple[RequestKind, ServedProgram, Sequence[int]]:
    """A program of the file on its player, the kind that it serves, and the number of samples that requests
    may have."""
    specs = tuple([decode_spec(s).open for s in data["specs"]])
    kind = RequestKind(_structure(data["inputs"]), specs, _POLICY)
    outputs, gathered = _structure(data["outputs"]), data["gathered"]
    _tree.unflatten(outputs, executable.outputs)  # raises ValueError where they do not match
    if [s for _, s in executable.inputs] != [s.fixed for s in specs]:
        raise PlanFileError(f"the plan's inputs are not {', '.join(map(str, specs))}")
    if gathered is None:
        return kind, ServedProgram(executable, outputs), ()
    most, counts, axes = gathered["most"], gathered["counts"], gathered["axes"]
    if any(type(n) is not int or not 0 < n <= most for n in counts) or any(
        s.shape[a] != most for s, a in zip(specs, axes, strict=True)
    ):
        raise PlanFileError(f"not batches of {most!r}: {counts!r} samples along {axes!r}")
    results = [None if r is None else SampleAxis(*map(int, r)) for r in gathered["results"]]
    for r, (_, spec) in zip(results, executable.outputs, strict=True):
        if r is not None and spec.shape[r.axis] != most * r.size:
            raise PlanFileError(f"an output {spec.open} has not the samples {r}")
    sample = [_stored(reading, *s) for s in gathered["samples"]]
    if [s.shape for s in sample] != [resized(s, a, 1).shape for s, a in zip(specs, axes, strict=True)]:
        raise PlanFileError("a sample is not of the inputs' shapes")
    return kind, GatheredProgram(executable, outputs, most, axes, results, sample), counts


_POLICY = Policy()


def _stored(reading: Reading, spec: Any, offset: Any) -> np.ndarray[Any, Any]:
    """An array of the file; its values are available once the file is read."""
    found = decode_spec(spec)
    part = reading.part([offset, found.nbytes])
    return np.frombuffer(part, found.dtype.numpy).reshape(found.shape)


def _structure(data: Any) -> Structure:
    """A tree without its leaves. Raises PlanFileError."""
    if data == "*":
        return LEAF
    if isinstance(data, bool):
        return Structure(bool, (data,))
    kind, keys, branches = data
    if kind == "dict" and len(keys) != len(branches):
        raise PlanFileError(f"a dict of {len(keys)} keys and {len(branches)} values")
    return Structure(_KINDS[kind], tuple(keys), tuple(map(_structure, branches)), None, key_types(keys))


def _planned_anew(
    reading: Reading, device: Device, replan: bool, others: Sequence[str], contexts: int
) -> list[tuple[RequestKind, ServedProgram, Sequence[int]]]:
    reasons = "; ".join(others)
    if not replan:
        raise OtherMachineError(
            f"{reading.path}: the plan is not for here: {reasons}. "
            "Plan anew with load(..., replan=True), or save it here"
        )
    if reading.header["sources"] is None:
        raise OtherMachineError(
            f"{reading.path}: {reasons}; it was saved without its graphs (portable=False)"
        )
    reading.finish()
    make: Callable[..., list[tuple[RequestKind, ServedProgram, Sequence[int]]]] = _late("planned_anew")
    return make(reading, device, contexts)


def _native(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _array(x: Any) -> np.ndarray[Any, Any]:
    """An array of any library, on the host. Raises TypeError."""
    if isinstance(x, np.ndarray):
        return _native(x)
    if hasattr(x, "numpy"):
        found: np.ndarray[Any, Any] = x.numpy()
        return found
    if hasattr(x, "__array__"):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        return np.from_dlpack(x)
    raise TypeError(f"SavedInferer: takes arrays, and tuples, lists and dicts of them, got {x!r}")
