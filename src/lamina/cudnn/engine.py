"""Operation graphs, the engines that can compute them, and heuristics that rank the engines.

A graph has a target: a `Handle` (a GPU that is present) or `DeviceProperties` (one described by a file). Everything
derived from the graph has the same target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import ClassVar, TypeAlias

from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, named
from lamina.cudnn.device import DeviceProperties
from lamina.cudnn.faults import known_wrong
from lamina.cudnn.handle import Handle

_KIND = c.cudnnBackendDescriptorType_t
NumericalNote: TypeAlias = c.cudnnBackendNumericalNote_t
BehaviorNote: TypeAlias = c.cudnnBackendBehaviorNote_t
Target: TypeAlias = Handle | DeviceProperties
Key: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]

_USUAL_KNOBS = 12
_MOST_KNOBS = len(c.cudnnBackendKnobType_t.__members__)


class OperationGraph(Descriptor):
    """Operations that share tensors, to be computed as one (CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR).

    dynamic: plans for other sizes can share kernels through a `KernelCache` (cuDNN 9.4).
    override: its plans run on other sizes, which a `VariantPack` names (cuDNN 9.21).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "operations": attribute("OPERATIONGRAPH_OPS", "BACKEND_DESCRIPTOR", many=True, takes="OPERATION_"),
        "handle": attribute("OPERATIONGRAPH_HANDLE", "HANDLE"),
        "engine_count": attribute("OPERATIONGRAPH_ENGINE_GLOBAL_COUNT"),
        "dynamic": attribute("OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED", "BOOLEAN"),
        "override": attribute("OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED", "BOOLEAN"),
    }

    def __init__(
        self,
        operations: Sequence[Descriptor],
        target: Target,
        *,
        dynamic: bool = False,
        override: bool = False,
    ) -> None:
        if not isinstance(target, Handle | DeviceProperties):
            raise TypeError(
                "OperationGraph: target must be a Handle (cudnn.handle_of(device)) or DeviceProperties, got "
                f"{target!r}"
            )
        if not operations:
            raise ValueError("OperationGraph: there is no operation to plan; add one to the graph first")
        self.target = target
        super().__init__(
            operations=tuple(operations),
            handle=target.address if isinstance(target, Handle) else None,
            dynamic=dynamic or None,
            override=override or None,
        )

    @property
    def properties(self) -> DeviceProperties | None:
        """The device properties that it is planned for; None if its target is a handle."""
        return self.target if isinstance(self.target, DeviceProperties) else None

    @property
    def engine_count(self) -> int:
        """How many engines the library has for such a graph; their numbers are 0 to engine_count - 1."""
        return int(self.get("engine_count"))

    def engines(self) -> list[Engine]:
        """Every engine that accepts the graph."""
        found = []
        for index in range(self.engine_count):
            with suppress(CudnnError):
                found.append(Engine(self, index))
        return found

    def heuristic(self, mode: str | int, *, sm_count: int | None = None) -> list[EngineConfig]:
        """Engine configurations, best first, by "a", "b", "instant" or "fallback". Raises CudnnError.

        They are unfiltered, including engines that are `known_wrong`; `configs` leaves those out.
        sm_count: how many multiprocessors of the GPU to plan for.
        """
        return Heuristics(self, mode, sm_count=sm_count).results()

    def configs(
        self,
        modes: Sequence[str | int] = ("a", "fallback"),
        *,
        sm_count: int | None = None,
        wrong: bool = False,
    ) -> Candidates:
        """The configurations of several modes, in order, without duplicates; refusals are collected, not raised.

        wrong: also those of engines that are `known_wrong` for the graph.
        """
        refusals: list[str] = []
        return Candidates(list(self.ranked(modes, refusals, sm_count=sm_count, wrong=wrong)), refusals)

    def ranked(
        self,
        modes: Sequence[str | int],
        refusals: list[str],
        *,
        sm_count: int | None = None,
        wrong: bool = False,
    ) -> Iterator[EngineConfig]:
        """Lazy form of `configs`: a mode is queried when those before it are exhausted.

        refusals: a list to which the reasons are appended.
        """
        operations = () if wrong else self.values["operations"]
        seen: set[Key] = set()
        for mode in _each(modes):
            try:
                configs = self.heuristic(mode, sm_count=sm_count)
            except CudnnError as error:
                refusals.append(f"heuristic {mode}: {error.code}: {error.message}")
                continue
            if not configs:
                reasons = engine_refusals(c.cudnnGetLastErrorString(1 << 16)) or ["names no engine"]
                refusals += [f"heuristic {mode}: {reason}" for reason in reasons]
            for config in configs:
                if config.key in seen:
                    continue
                seen.add(config.key)
                fault = known_wrong(operations, config.key[0])
                if fault:
                    refusals.append(f"{key_text(config.key)}: {fault}")
                else:
                    yield config


_ENGINE = re.compile(r'"engineId":\s*(\d+)')
_REASON = re.compile(r"CUDNN_STATUS_(\w+); Reason: (.*)")


def engine_refusals(text: str) -> list[str]:
    """What the library noted about engines that refused a graph: "eng4: NOT_SUPPORTED_DATA_TYPE: reason".

    text: of cudnnGetLastErrorString after a heuristic that named no engine. Only the first, innermost reason of each
        engine is kept.
    """
    found: dict[str, None] = {}
    engine = ""
    for line in text.splitlines():
        if match := _ENGINE.search(line):
            engine = match[1]
        elif engine and (match := _REASON.search(line)):
            found[f"eng{engine}: {match[1]}: {match[2].strip()}"] = None
            engine = ""
    return list(found)


class Candidates:
    """Engine configurations in order of preference, and why heuristics gave none."""

    def __init__(self, configs: list[EngineConfig], refusals: list[str]) -> None:
        self.configs, self.refusals = configs, refusals

    def __iter__(self) -> Iterator[EngineConfig]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)


class KnobChoice(Descriptor):
    """One tuning parameter of an engine and its value."""

    kind = _KIND.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "knob": attribute("KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE"),
        "value": attribute("KNOB_CHOICE_KNOB_VALUE"),
    }

    def __init__(self, knob: int, value: int) -> None:
        super().__init__(knob=knob, value=value)


class KnobInfo(Descriptor):
    """A tuning parameter that an engine has, and its range."""

    kind = _KIND.CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "knob": attribute("KNOB_INFO_TYPE", "KNOB_TYPE"),
        "minimum": attribute("KNOB_INFO_MINIMUM_VALUE"),
        "maximum": attribute("KNOB_INFO_MAXIMUM_VALUE"),
        "stride": attribute("KNOB_INFO_STRIDE"),
    }

    @property
    def name(self) -> str:
        """The knob's name: "TILE_SIZE", "SPLIT_K", …"""
        return knob_name(int(self.get("knob")))

    @property
    def choices(self) -> range:
        """The values that it can have."""
        return range(self.get("minimum"), self.get("maximum") + 1, max(1, self.get("stride")))

    def __repr__(self) -> str:
        if self.closed:
            return "KnobInfo(closed)"
        return f"KnobInfo({self.name}: {self.choices.start} to {self.get('maximum')} by {self.choices.step})"


class Engine(Descriptor):
    """One way to compute a graph, with tuning parameters (CUDNN_BACKEND_ENGINE_DESCRIPTOR)."""

    kind = _KIND.CUDNN_BACKEND_ENGINE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "graph": attribute("ENGINE_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", takes="OPERATIONGRAPH"),
        "index": attribute("ENGINE_GLOBAL_INDEX"),
        "properties": attribute("ENGINE_DEVICEPROP", "BACKEND_DESCRIPTOR", takes="DEVICEPROP"),
        "sm_count": attribute("ENGINE_SM_COUNT_TARGET", "INT32"),
        "knobs": attribute("ENGINE_KNOB_INFO", "BACKEND_DESCRIPTOR", many=True),
        "numerical_notes": attribute(
            "ENGINE_NUMERICAL_NOTE", "NUMERICAL_NOTE", many=True, enum=NumericalNote
        ),
        "behavior_notes": attribute("ENGINE_BEHAVIOR_NOTE", "BEHAVIOR_NOTE", many=True, enum=BehaviorNote),
    }

    def __init__(self, graph: OperationGraph, index: int, *, sm_count: int | None = None) -> None:
        super().__init__(graph=graph, index=index, properties=graph.properties, sm_count=sm_count)

    @property
    def index(self) -> int:
        """The engine's number within the graph's engines."""
        return int(self.get("index"))

    @property
    def numerical_notes(self) -> frozenset[NumericalNote]:
        """Notes on its numerics: TENSOR_CORE, NONDETERMINISTIC, …"""
        return frozenset(self.get("numerical_notes"))

    @property
    def behavior_notes(self) -> frozenset[BehaviorNote]:
        """Notes on its behaviour at run time: RUNTIME_COMPILATION, …"""
        return frozenset(self.get("behavior_notes"))

    def knobs(self) -> list[KnobInfo]:
        """Its tuning parameters."""
        return self._get_descriptors("knobs", KnobInfo, _MOST_KNOBS)


class EngineConfig(Descriptor):
    """An engine with values for its tuning parameters (CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).

    The pair (engine number, knob values) is its `key`: with the same graph, device and version of cuDNN it recreates
    the same configuration.
    """

    kind = _KIND.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "engine": attribute("ENGINECFG_ENGINE", "BACKEND_DESCRIPTOR", takes="ENGINE"),
        "knobs": attribute("ENGINECFG_KNOB_CHOICES", "BACKEND_DESCRIPTOR", many=True, takes="KNOB_CHOICE"),
        "workspace": attribute("ENGINECFG_WORKSPACE_SIZE"),
        "shared_memory": attribute("ENGINECFG_SHARED_MEMORY_USED", "INT32"),
    }
    #: The known computation, where there is one.
    graph: OperationGraph | None = None

    def __init__(self, graph: OperationGraph, index: int, knobs: Mapping[int, int] | None = None) -> None:
        self.graph = graph
        choices = tuple(KnobChoice(knob, value) for knob, value in (knobs or {}).items())
        super().__init__(engine=Engine(graph, index), knobs=choices or None)

    @property
    def engine(self) -> Engine:
        """The engine."""
        if "engine" not in self._values:
            self._values["engine"] = self._get_descriptors("engine", Engine, 1)[0]
        made: Engine = self._values["engine"]
        return made

    @property
    def knobs(self) -> dict[int, int]:
        """Knob type -> value."""
        # The library does not return their number, and descriptors for the maximum take time to make.
        found = self._get_descriptors("knobs", KnobChoice, _USUAL_KNOBS)
        if len(found) == _USUAL_KNOBS:
            found = self._get_descriptors("knobs", KnobChoice, _MOST_KNOBS)
        return {int(k.get("knob")): int(k.get("value")) for k in found}

    @property
    def key(self) -> Key:
        """(engine number, ((knob, value), …)) with knobs in order."""
        if "key" not in self._values:
            self._values["key"] = (self.engine.index, tuple(sorted(self.knobs.items())))
        key: Key = self._values["key"]
        return key

    def __repr__(self) -> str:
        if self.closed:
            return "EngineConfig(closed)"
        notes = ",".join(
            sorted(n.name.removeprefix("CUDNN_NUMERICAL_NOTE_") for n in self.engine.numerical_notes)
        )
        return f"EngineConfig({key_text(self.key)}{', ' + notes if notes else ''})"


def key_text(key: Key) -> str:
    """A configuration's key in readable form: "eng62{2:0,13:1}"."""
    knobs = ",".join(f"{knob}:{value}" for knob, value in key[1])
    return f"eng{key[0]}" + (f"{{{knobs}}}" if knobs else "")


def knob_name(knob: int) -> str:
    """The name of a knob type: 2 -> "TILE_SIZE"."""
    return c.cudnnBackendKnobType_t.label(knob).removeprefix("CUDNN_KNOB_TYPE_")


def note(value: str | int) -> NumericalNote | BehaviorNote:
    """The note of an engine by its name: "tensor_core", "nondeterministic", "runtime_compilation", …

    Raises ValueError for an unknown name. A note itself is given back.
    """
    if isinstance(value, NumericalNote | BehaviorNote):
        return value
    text = str(value).upper()
    for kind, prefix in ((NumericalNote, "CUDNN_NUMERICAL_NOTE_"), (BehaviorNote, "CUDNN_BEHAVIOR_NOTE_")):
        for name, member in kind.__members__.items():
            if text in (name.upper(), name.upper().removeprefix(prefix)):
                return member
    known = [n.name.split("_NOTE_")[1].lower() for kind in (NumericalNote, BehaviorNote) for n in kind]
    raise ValueError(f"unknown note {value!r}; known: {', '.join(known)}")


def note_filter(
    require: Iterable[str | int] = (), forbid: Iterable[str | int] = ()
) -> Callable[[EngineConfig], str]:
    """A test of configurations by notes: "" if all required and no forbidden ones are present, else the reason."""
    required, forbidden = [note(n) for n in _each(require)], [note(n) for n in _each(forbid)]

    def test(config: EngineConfig) -> str:
        if not required and not forbidden:
            return ""
        notes: list[IntEnum] = [*config.engine.numerical_notes, *config.engine.behavior_notes]
        lacks = [n.name for n in required if not _has(notes, n)]
        has = [n.name for n in forbidden if _has(notes, n)]
        return " and ".join([*(f"lacks {n}" for n in lacks), *(f"has {n}" for n in has)])

    return test


def _each(names: str | int | Iterable[str | int]) -> Iterable[str | int]:
    """Names, of which one may be given alone."""
    return (names,) if isinstance(names, str | int) else names


def _has(notes: Iterable[IntEnum], wanted: IntEnum) -> bool:
    """Whether a note is among others; notes of the two kinds may have equal numbers."""
    return any(type(n) is type(wanted) and n == wanted for n in notes)


class Heuristics(Descriptor):
    """Configurations ranked by expected speed (CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)."""

    kind = _KIND.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "graph": attribute("ENGINEHEUR_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", takes="OPERATIONGRAPH"),
        "mode": attribute("ENGINEHEUR_MODE", "HEUR_MODE", enum=c.cudnnBackendHeurMode_t),
        "properties": attribute("ENGINEHEUR_DEVICEPROP", "BACKEND_DESCRIPTOR", takes="DEVICEPROP"),
        "sm_count": attribute("ENGINEHEUR_SM_COUNT_TARGET", "INT32"),
        "results": attribute("ENGINEHEUR_RESULTS", "BACKEND_DESCRIPTOR", many=True),
    }

    def __init__(self, graph: OperationGraph, mode: str | int = "a", *, sm_count: int | None = None) -> None:
        text = mode.removeprefix("CUDNN_HEUR_MODE_").removeprefix("MODE_") if isinstance(mode, str) else mode
        self.graph = graph
        super().__init__(
            graph=graph,
            mode=named(c.cudnnBackendHeurMode_t, "CUDNN_HEUR_MODE_", text, "heuristic mode"),
            properties=graph.properties,
            sm_count=sm_count,
        )

    def results(self) -> list[EngineConfig]:
        """The configurations, best first."""
        found = self._get_descriptors("results", EngineConfig, self._count(self._attribute("results")))
        for config in found:
            config.graph = self.graph
        return found
