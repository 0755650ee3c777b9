"""Choice of a convolution algorithm: the library's heuristic, its ranked list, or measured times; remembered.

search = Search("forward", convolution, x_desc=x_desc, w_desc=w_desc, y_desc=y_desc)
best = search.find_ex(handle, x=x, w=w, y=y, limit=64 << 20, deterministic=True)[0]
choices.put(search, handle, best); choices.save("choices.json")
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lamina.c import cudnn as c
from lamina.c.errors import CudnnNotSupported
from lamina.cudnn.legacy.algorithms import NAMED, STEMS, Algorithm
from lamina.cudnn.legacy.algorithms import algorithm as by_name
from lamina.cudnn.legacy.base import AnyHandle, Memory, call
from lamina.cudnn.legacy.convolution import Convolution, ConvolutionBase
from lamina.cudnn.legacy.deconvolution import Deconvolution
from lamina.cudnn.legacy.filter import FilterDescriptor
from lamina.cudnn.legacy.flags import Determinism, MathType, Name, Preference, Status, flag, short
from lamina.cudnn.legacy.handles import Handle, Scratch, scratch, sized
from lamina.cudnn.legacy.tensor import TensorDescriptor
from lamina.runtime import write_atomically

#: A deconvolution's directions are these of the convolution.
_TRANSPOSED = {"forward": "backward_data", "backward_data": "forward", "backward_filter": "backward_filter"}


class Found(NamedTuple):
    """The result of a search for one algorithm."""

    algorithm: Algorithm
    status: Status  # success, or why it cannot be used
    time: float | None  # milliseconds; None where nothing was measured
    memory: int  # bytes of workspace
    determinism: Determinism
    math_type: MathType

    @property
    def works(self) -> bool:
        """Whether the algorithm can be used."""
        return self.status == Status.CUDNN_STATUS_SUCCESS

    def __repr__(self) -> str:
        time = "not timed" if self.time is None else f"{self.time:.4g} ms"
        return (
            f"Found({short(self.algorithm)}, {short(self.status)}, {time}, {self.memory} bytes, "
            f"{short(self.determinism)}, math {short(self.math_type)})"
        )


def fitting(found: Iterable[Found], *, limit: int | None = None, deterministic: bool = False) -> list[Found]:
    """Those that work, within `limit` bytes of workspace, and bitwise reproducible if requested; order kept."""
    return [
        one
        for one in found
        if one.works
        and (limit is None or one.memory <= limit)
        and (not deterministic or one.determinism == Determinism.CUDNN_DETERMINISTIC)
    ]


@dataclass(frozen=True)
class Search:
    """One direction of one convolution, with all of its algorithms.

    Args:
        direction: "forward", "backward_data" or "backward_filter", of the object given: the forward of a
            `Deconvolution` has the algorithms of a data gradient.
        convolution: a `Convolution` or `Deconvolution`.
        x_desc, w_desc, y_desc: input, filter and output, or gradients of their shapes.
        alignment: bytes that the addresses are a multiple of; it decides which algorithms are fast, so that a
            choice is remembered for it.
    """

    direction: str
    convolution: ConvolutionBase
    x_desc: TensorDescriptor
    w_desc: FilterDescriptor
    y_desc: TensorDescriptor
    alignment: int = 16

    def __post_init__(self) -> None:
        if self.direction not in STEMS:
            raise ValueError(f"direction={self.direction!r}: there are {', '.join(STEMS)}")
        if not isinstance(self.convolution, (Convolution, Deconvolution)):
            raise TypeError(
                f"convolution: a Convolution or Deconvolution is wanted, got {self.convolution!r}"
            )

    @property
    def c_direction(self) -> str:
        """The direction of the C calls and algorithms."""
        transposed = isinstance(self.convolution, Deconvolution)
        return _TRANSPOSED[self.direction] if transposed else self.direction

    def _function(self, before: str, after: str) -> Any:
        """The C function of this direction, such as cudnn + Find + ConvolutionForward + Algorithm."""
        return getattr(c, f"cudnn{before}{STEMS[self.c_direction]}{after}")

    def _operands(self, x: Any, w: Any, y: Any) -> tuple[Any, Any, Any]:
        """x, w, y in the C direction's order of operands, the result last."""
        if isinstance(self.convolution, Deconvolution):
            x, y = y, x
        return {"forward": (x, w, y), "backward_data": (w, y, x), "backward_filter": (x, y, w)}[
            self.c_direction
        ]

    def _descriptors(self) -> tuple[Any, ...]:
        """The four descriptors in the order of the C calls."""
        first, second, result = self._operands(self.x_desc, self.w_desc, self.y_desc)
        return first, second, self.convolution, result

    def _results(self, perfs: Iterable[Any], timed: bool) -> list[Found]:
        kind = type(by_name(self.c_direction))
        return [
            Found(
                kind(perf.algo),
                Status(perf.status),
                float(perf.time) if timed and perf.time >= 0 else None,
                int(perf.memory),
                Determinism(perf.determinism),
                MathType(perf.mathType),
            )
            for perf in perfs
        ]

    # ---- what there is
    def named(self, name: Name) -> Algorithm:
        """An algorithm of this direction by name: "none", "small", "large", "fft", "winograd", "algo_1", …"""
        return by_name(self.c_direction, name)

    def names(self) -> dict[str, Algorithm]:
        """The descriptive names of this direction's algorithms (`algorithms.NAMED`)."""
        return dict(NAMED[self.c_direction])

    def max_count(self, handle: AnyHandle) -> int:
        """How many results a search can give (algorithms × math types)."""
        return int(call(self._function("Get", "AlgorithmMaxCount"), handle))

    def workspace(self, handle: AnyHandle, name: Name) -> int:
        """Bytes of workspace that an algorithm needs. CudnnNotSupported if it does not take this case."""
        operands = self._operands(self.x_desc, self.w_desc, self.y_desc)
        return self.convolution.scratch_size(self.c_direction, handle, *operands, name)

    # ---- heuristics
    def ranked(
        self, handle: AnyHandle, *, limit: int | None = None, deterministic: bool = False
    ) -> list[Found]:
        """Algorithms in the order of expected time, without running any (cudnnGetConvolution…Algorithm_v7).

        limit, deterministic: as for `fitting`; without them, those that do not work are listed too, last.
        """
        function = self._function("Get", "Algorithm_v7")
        perfs = call(function, handle, *self._descriptors(), self.max_count(handle))
        return self._filtered(perfs, False, limit, deterministic)

    def heuristic(
        self,
        handle: AnyHandle,
        *,
        preference: Name = "prefer_fastest",
        limit: int | None = None,
        deterministic: bool = False,
    ) -> Found:
        """The first of `ranked` that meets a preference, as cuDNN's Get…Algorithm did before version 8.

        Args:
            handle: of the GPU.
            preference: "no_workspace", "prefer_fastest", or "specify_workspace_limit" (then `limit` counts;
                a limit alone means this one).
            limit: most bytes of workspace.
            deterministic: only algorithms that repeat bit by bit.

        Raises:
            CudnnNotSupported: none does; the text says how much workspace the least needs.
        """
        wanted = flag(Preference, preference)
        if wanted == Preference.SPECIFY_WORKSPACE_LIMIT and limit is None:
            raise ValueError("preference='specify_workspace_limit' needs limit, in bytes")
        most = 0 if wanted == Preference.NO_WORKSPACE else limit
        found = self.ranked(handle)
        return self._first(found, most, deterministic, f"preference={short(wanted)}")

    # ---- measured
    def find(
        self, handle: AnyHandle, *, limit: int | None = None, deterministic: bool = False
    ) -> list[Found]:
        """All algorithms, timed on memory that cuDNN allocates, fastest first (cudnnFindConvolution…Algorithm).

        cuDNN allocates what each algorithm asks for, whatever `limit` says; `find_ex` stays within it.
        """
        function = self._function("Find", "Algorithm")
        perfs = call(function, handle, *self._descriptors(), self.max_count(handle))
        return self._filtered(perfs, True, limit, deterministic)

    def find_ex(
        self,
        handle: AnyHandle,
        *,
        x: Memory,
        w: Memory,
        y: Memory,
        workspace: Memory | tuple[Memory, int] = None,
        limit: int | None = None,
        deterministic: bool = False,
    ) -> list[Found]:
        """All algorithms, timed on the caller's memory, fastest first (cudnnFindConvolution…AlgorithmEx).

        Args:
            handle: where and on which stream.
            x, w, y: the tensors or their gradients; the direction's result is overwritten.
            workspace: scratch: only algorithms that it suffices for are run. Omitted, the handle provides as
                much as the ranked algorithms ask for, or `limit` if that is less.
            limit: most bytes of workspace.
            deterministic: only algorithms that repeat bit by bit.
        """
        space = self._workspace(handle, workspace, limit)
        first, second, result = self._operands((self.x_desc, x), (self.w_desc, w), (self.y_desc, y))
        count = self.max_count(handle)
        arguments = (*first, *second, self.convolution, *result, count, *space)
        perfs = call(self._function("Find", "AlgorithmEx"), handle, *arguments)
        return self._filtered(perfs, True, limit, deterministic)

    def _workspace(self, handle: AnyHandle, given: Memory | tuple[Memory, int], limit: int | None) -> Scratch:
        if given is not None:
            memory, nbytes = sized("workspace", given)
            return Scratch(memory, nbytes if limit is None else min(nbytes, limit))
        wanted = max((one.memory for one in self.ranked(handle, limit=limit)), default=0)
        return scratch(handle, None, lambda: wanted)

    # ---- choosing
    def _filtered(
        self, perfs: Iterable[Any], timed: bool, limit: int | None, deterministic: bool
    ) -> list[Found]:
        found = self._results(perfs, timed)
        if limit is None and not deterministic:
            return sorted(found, key=lambda one: not one.works)
        return fitting(found, limit=limit, deterministic=deterministic)

    def _first(self, found: list[Found], limit: int | None, deterministic: bool, asked: str) -> Found:
        allowed = fitting(found, limit=limit, deterministic=deterministic)
        if allowed:
            return allowed[0]
        least = min((one.memory for one in fitting(found, deterministic=deterministic)), default=None)
        reason = "no algorithm works" if least is None else f"the least workspace is {least} bytes"
        raise CudnnNotSupported(
            int(Status.CUDNN_STATUS_NOT_SUPPORTED),
            f"Search({self.direction})",
            f"{reason} (limit {limit}, deterministic {deterministic})",
            asked,
        )

    def key(self, handle: AnyHandle) -> str:
        """The key of a choice: direction, sizes, strides, types, window, GPU, cuDNN's version."""
        device = handle.device.name if isinstance(handle, Handle) else "unknown device"
        parts = [self.c_direction]
        parts += [repr(one) for one in self._descriptors()]
        strides = (self.x_desc.strides, self.y_desc.strides)
        parts += [f"strides {strides}", f"aligned to {self.alignment}"]
        return " | ".join([*parts, device, f"cuDNN {c.cudnnGetVersion()}"])


# --------------------------------------------------------------------------------------------------- choices
class Choices:
    """Algorithms that were chosen, by case; kept in a JSON file.

    The file holds names and numbers only. It is written whole and then put in its place, so that a reader
    never sees half of it.
    """

    FORMAT = 1

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, search: Search, handle: AnyHandle) -> Found | None:
        """What was chosen for this case on this GPU with this cuDNN, or None."""
        return self._found.get(search.key(handle))

    def put(self, search: Search, handle: AnyHandle, found: Found) -> None:
        """Remember a choice. TypeError if it is an algorithm of another direction."""
        if type(found.algorithm) is not type(search.named("deterministic")):
            raise TypeError(f"{found!r} is no algorithm for {search.c_direction}")
        self._found[search.key(handle)] = found

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all choices to a file."""
        entries = {key: _written(found) for key, found in sorted(self._found.items())}
        text = json.dumps({"format": self.FORMAT, "choices": entries}, indent=1)
        write_atomically(Path(path), [f"{text}\n".encode()])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Choices:
        """Read a file that `save` wrote.

        Raises:
            ValueError: the file is damaged, or of another format; the text names it and says where.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != cls.FORMAT:
                raise ValueError(f"format {content['format']!r}, this reads {cls.FORMAT}")
            made = cls()
            for key, entry in content["choices"].items():
                made._found[str(key)] = _read(str(key), entry)
            return made
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)} holds no choices: {error}") from error


def _written(found: Found) -> dict[str, Any]:
    entry = found._asdict()
    return {name: short(value) if hasattr(value, "name") else value for name, value in entry.items()}


def _read(key: str, entry: dict[str, Any]) -> Found:
    direction = key.split(" | ")[0]
    time, memory = entry["time"], entry["memory"]
    if not (time is None or isinstance(time, (int, float))) or not isinstance(memory, int) or memory < 0:
        raise ValueError(f"time {time!r} or memory {memory!r} of {key!r}")
    return Found(
        by_name(direction, str(entry["algorithm"])),
        flag(Status, str(entry["status"])),
        None if time is None else float(time),
        memory,
        flag(Determinism, str(entry["determinism"])),
        flag(MathType, str(entry["math_type"])),
    )
