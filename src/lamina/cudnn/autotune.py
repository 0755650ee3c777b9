"""Which engine is fastest for a graph: all candidates of the heuristics are built, checked and timed; the best is
remembered."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

from lamina.c.errors import CudnnError
from lamina.cudnn.contest import ITEM_SIZES, Contest, OperandMemory, Run
from lamina.cudnn.descriptor import DATA_TYPES, Descriptor, text_of
from lamina.cudnn.engine import (
    BehaviorNote,
    EngineConfig,
    Key,
    NumericalNote,
    OperationGraph,
    Target,
    key_text,
)
from lamina.cudnn.faults import known_wrong
from lamina.cudnn.finalize import as_here, attempt
from lamina.cudnn.handle import Handle
from lamina.cudnn.plan import ExecutionPlan, VariantPack
from lamina.cudnn.store import Choice, PlanStore, plan_store
from lamina.cudnn.tensor import Tensor
from lamina.runtime import Device, digest

Accept = Callable[[EngineConfig], str]
#: Computes the reference: uid -> address, and the stream (a cudaStream_t).
Plain = Callable[[Mapping[int, int], int], None]

#: The most plans of one graph with run-time compilation that are tried: each takes about a second.
MOST_COMPILED = 6
#: The attributes that an operation writes, by the name of its class.
RESULTS: Mapping[str, tuple[str, ...]] = {
    "ConvolutionForward": ("y",),
    "ConvolutionBackwardData": ("dx",),
    "ConvolutionBackwardFilter": ("dw",),
    "MatmulOperation": ("c",),
    "PointwiseOperation": ("y", "dx"),
    "ReductionOperation": ("y",),
    "ResampleForward": ("y", "index"),
    "ResampleBackward": ("dx",),
    "NormForward": ("y", "mean", "inv_variance", "next_mean", "next_var"),
    "NormBackward": ("dx", "dscale", "dbias"),
    "GenStats": ("total", "squares"),
    "BnFinalize": ("eq_scale", "eq_bias", "mean", "inv_std", "next_mean", "next_var"),
    "BnBackwardWeights": ("dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias"),
    "Softmax": ("y", "stats", "maximum", "sum_exp"),
    "AttentionForward": ("o", "stats"),
    "AttentionBackward": ("dq", "dk", "dv", "dsink", "dbias"),
    "BlockScaleQuantize": ("y", "scale"),
    **dict.fromkeys(("BlockScaleDequantize", "Concatenate", "Reshape", "Transpose", "Slice"), ("y",)),
    **dict.fromkeys(("DiagonalBandMask", "BandMatrixExpand", "BandMatrixContract", "PagedCacheLoad"), ("y",)),
    "RopeForward": ("y",),
    "RopeBackward": ("dx",),
    "MoeGroupedMatmul": ("output",),
    "MoeGroupedMatmulBackward": ("dweight",),
}
#: Default limit on the bytes of workspace: other processes may tune on the same GPU.
MOST_WORKSPACE = 4 << 30
_NAMES = {int(kind): name for name, kind in DATA_TYPES.items()}
_TOLERANCES = {"float64": 1e-11, "float32": 5e-5, "float16": 4e-3, "bfloat16": 2e-2}
_TF32_TOLERANCE, _FLOAT8_TOLERANCE = 4e-3, 0.1


# ------------------------------------------------------------------------------------------------ what is allowed


def tolerance_of(data_type: str, *, tf32: bool = False) -> float:
    """The largest ||result - expected|| / ||expected|| of a correct result of an element type."""
    if data_type == "float32" and tf32:
        return _TF32_TOLERANCE
    if data_type.startswith("float8"):
        return _FLOAT8_TOLERANCE
    return _TOLERANCES.get(data_type, 0.0)


def unwanted(
    config: EngineConfig,
    data_type: str,
    *,
    deterministic: bool = False,
    tf32: bool = False,
    half_sums: bool = False,
) -> str:
    """Why an engine is not allowed for operands of a type, "" where it is.

    Args:
        deterministic: its results must be bitwise reproducible.
        tf32: it may round float32 to TF32.
        half_sums: it may sum in a half type.
    """
    notes = config.engine.numerical_notes
    if deterministic and NumericalNote.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC in notes:
        return "not deterministic"
    rounding = {
        NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
        NumericalNote.CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
    }
    if notes & rounding and data_type == "float32" and not tf32:
        return "rounds float32 to TF32, which is not allowed (tf32=True does)"
    if NumericalNote.CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION in notes and not half_sums:
        return "sums in a half type"
    return ""


def few_compiled(most: int = MOST_COMPILED) -> Accept:
    """A filter that passes at most `most` configurations with run-time compiled kernels, and all others."""
    count = 0

    def test(config: EngineConfig) -> str:
        nonlocal count
        if not _compiles(config):
            return ""
        count += 1
        return f"compiled at run time, as {most} before it" if count > most else ""

    return test


def _compiles(config: EngineConfig) -> bool:
    """Whether an engine's kernels are compiled at run time."""
    return BehaviorNote.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION in config.engine.behavior_notes


def budget(device: Device, workspace_limit: int | None) -> int:
    """Bytes of workspace for candidates: the limit, by default a quarter of the free memory, 4 GiB at most."""
    if workspace_limit is not None:
        return workspace_limit
    return min(device.memory_info().free // 4, MOST_WORKSPACE)


# ------------------------------------------------------------------------------------------------ making plans


def build_all(
    configs: Sequence[EngineConfig], target: Target, workspace_limits: Sequence[int | None]
) -> list[ExecutionPlan | str]:
    """The plan of each configuration, or why there is none; built in several threads, since compilation takes a
    second.

    Those that need compilation start first, so that none of them is the last to finish alone.
    """

    def make(number: int) -> ExecutionPlan | str:
        if isinstance(target, Handle):
            target.device.make_current()
        return attempt(configs[number], target, workspace_limit=workspace_limits[number])

    order = sorted(range(len(configs)), key=lambda i: not _compiles(configs[i]))
    with ThreadPoolExecutor(threads(len(configs))) as pool:
        made = dict(zip(order, pool.map(as_here(make), order), strict=True))
    return [made[number] for number in range(len(configs))]


def threads(tasks: int) -> int:
    """How many threads to use for `tasks` tasks."""
    return max(1, min(tasks, os.cpu_count() or 1, 16))


def accepted(configs: Iterable[EngineConfig], accept: Accept, refusals: list[str]) -> list[EngineConfig]:
    """The accepted configurations; the reasons for rejecting others are appended to `refusals`."""
    kept = []
    for config in configs:
        reason = accept(config)
        if reason:
            refusals.append(f"{key_text(config.key)}: {reason}")
        else:
            kept.append(config)
    return kept


# ------------------------------------------------------------------------------------- beyond the heuristics' lists

#: Knobs with more values than this keep their value.
_MOST_VALUES = 32
#: Knob values that are tried for engines that no heuristic names; other knobs get their least value. Tiles of 128 and
#: 256 rows and columns, clusters of 1, 2 and 4 blocks: what heuristics name for graphs of the same kind on Hopper.
_TYPICAL = {"TILE_SIZE": (0, 3, 4, 7), "TILEK": (1, 0), "IDX_MODE": (0, 1), "TILE_CGA_M": (1, 2, 4)}


def neighbours(graph: OperationGraph, key: Key) -> list[EngineConfig]:
    """The configurations that differ from a known one in one knob's value, as far as the engine accepts them.

    For problems that are worth more time than a heuristic's list: engines have several hundred configurations, of
    which heuristics name a few.
    """
    number, knobs = key[0], dict(key[1])
    config = EngineConfig(graph, number, knobs)
    found = []
    for info in config.engine.knobs():
        knob = int(info.get("knob"))
        if knob not in knobs or len(info.choices) > _MOST_VALUES:
            continue
        others = (value for value in info.choices if value != knobs[knob])
        found += [{**knobs, knob: value} for value in others]
    return _made(graph, number, found)


def unnamed(graph: OperationGraph, named: Collection[int], most: int = 12) -> list[EngineConfig]:
    """Typical configurations of engines with clusters (Hopper's) that accept a graph, but that no heuristic named.

    named: engine numbers that are known. At most `most` of each engine.
    """
    found: list[EngineConfig] = []
    for engine in graph.engines():
        infos = engine.knobs()
        names = [info.name for info in infos]
        if (
            engine.index in named
            or "TILE_CGA_M" not in names
            or known_wrong(graph.values["operations"], engine.index)
        ):
            continue
        values = [[v for v in _TYPICAL.get(i.name, (i.choices.start,)) if v in i.choices] for i in infos]
        numbers = [int(info.get("knob")) for info in infos]
        sets = [dict(zip(numbers, chosen, strict=True)) for chosen in product(*values)]
        found += _made(graph, engine.index, sets)[:most]
    return found


def _made(graph: OperationGraph, engine: int, knobs: Iterable[Mapping[int, int]]) -> list[EngineConfig]:
    """The configurations that the engine accepts."""
    found = []
    for values in knobs:
        with suppress(CudnnError):
            found.append(EngineConfig(graph, engine, values))
    return found


# ------------------------------------------------------------------------------------------------ tuning a graph


@dataclass(frozen=True)
class _Trial:
    """A plan as a candidate of the contest; fixed: addresses of numbers on the host."""

    plan: ExecutionPlan
    handle: Handle
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fixed: Mapping[int, int]

    @property
    def label(self) -> str:
        """Engine and knobs."""
        return key_text(self.plan.config.key) if self.plan.config else "plan"

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return self.plan.workspace

    def bind(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int) -> Run:
        """Fix the addresses."""
        places = {**self.fixed, **_by_uid(self.inputs, inputs), **_by_uid(self.outputs, outputs)}
        return self.plan.bind(self.handle, VariantPack(places, workspace), stream)


@dataclass(frozen=True)
class _PlainTrial:
    """The caller's own computation."""

    function: Plain
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fixed: Mapping[int, int]
    label: str = "plain"
    workspace: int = 0

    def bind(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int) -> Run:
        """Fix the addresses."""
        places = {**self.fixed, **_by_uid(self.inputs, inputs), **_by_uid(self.outputs, outputs)}
        return lambda: self.function(places, stream)


def _by_uid(uids: Sequence[int], addresses: Sequence[int]) -> dict[int, int]:
    return dict(zip(uids, addresses, strict=True))


@dataclass(frozen=True)
class _Operands:
    """The tensors of a graph that are stored in memory, and the caller's addresses."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    fixed: Mapping[int, int]
    updated: frozenset[int]
    pointers: Mapping[int, int] = field(default_factory=dict)

    @property
    def uids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of inputs and outputs."""
        return tuple(t.uid for t in self.inputs), tuple(t.uid for t in self.outputs)

    @property
    def data_type(self) -> str:
        """The element type that determines precision: that of the first input."""
        return _name(self.inputs[0] if self.inputs else self.outputs[0])

    def contest(self, handle: Handle, tolerance: float) -> Contest:
        """The contest on such operands."""
        values = {i: self.pointers[t.uid] for i, t in enumerate(self.inputs) if t.uid in self.pointers}
        inputs, outputs = (
            [_memory(t, t.uid in self.updated) for t in s] for s in (self.inputs, self.outputs)
        )
        return Contest(handle.device, inputs, outputs, tolerance, values)


def autotune(
    graph: OperationGraph,
    tensors: Sequence[Tensor],
    title: str,
    handle: Handle,
    *,
    pointers: Mapping[int, int],
    workspace_limit: int | None,
    deterministic: bool,
    tf32: bool,
    tolerance: float | None,
    plain: Plain | None,
    accept: Accept | None,
    outputs: Sequence[Tensor] | None,
    store: PlanStore | None,
    refusals: list[str],
) -> ExecutionPlan | None:
    """Implements `Graph.autotune`; None where no candidate is correct, with the reasons in `refusals`."""
    operations = graph.values["operations"]
    operands = _operands(operations, tensors, outputs, pointers)
    kept = store or plan_store(handle.device)
    options = f"limit={workspace_limit} deterministic={deterministic} tf32={tf32}"
    key = f"{title} {digest(*map(text_of, operations))[:32]} {options}"

    def wanted(config: EngineConfig) -> str:
        reason = unwanted(config, operands.data_type, deterministic=deterministic, tf32=tf32)
        return reason or (accept(config) if accept else "")

    limit = budget(handle.device, workspace_limit)
    remembered = kept.get(key)
    if remembered is not None:
        found = _again(graph, remembered, handle, limit, wanted)
        if found is not None:
            return found
    plans = _candidates(graph, handle, limit, wanted, refusals)
    if not plans:
        return None
    allowed = tolerance_of(operands.data_type, tf32=tf32) if tolerance is None else tolerance
    trials = [_Trial(plan, handle, *operands.uids, operands.fixed) for plan in plans]
    right: _Trial | _PlainTrial | None = _fallback(graph, trials)
    if plain is not None:
        right = _PlainTrial(plain, *operands.uids, operands.fixed)
    best = operands.contest(handle, allowed).best(trials, plain=right, refusals=refusals)
    if best is None:
        return None
    trial, milliseconds = best
    config = trial.plan.config
    assert config is not None, "plans are made of configurations here"
    kept.put(key, Choice("graph", *config.key, milliseconds))
    return trial.plan


def _again(
    graph: OperationGraph, choice: Choice, handle: Handle, limit: int, wanted: Accept
) -> ExecutionPlan | None:
    """The plan of a remembered choice, or None where it no longer builds or is no longer allowed."""
    try:
        config = EngineConfig(graph, choice.engine, dict(choice.knobs))
    except CudnnError:
        return None
    plan = "not allowed" if wanted(config) else attempt(config, handle, workspace_limit=limit)
    return None if isinstance(plan, str) else plan


def _candidates(
    graph: OperationGraph, handle: Handle, limit: int, wanted: Accept, refusals: list[str]
) -> list[ExecutionPlan]:
    """Every plan that may run, the heuristic's first one first."""
    found = graph.configs(("a", "b", "fallback"))
    refusals += found.refusals
    few = few_compiled()
    configs = accepted(found, lambda config: wanted(config) or few(config), refusals)
    made = build_all(configs, handle, [limit] * len(configs))
    refusals += [one for one in made if isinstance(one, str)]
    return [one for one in made if isinstance(one, ExecutionPlan)]


def _fallback(graph: OperationGraph, trials: Sequence[_Trial]) -> _Trial | None:
    """The candidate that the "fallback" heuristic prefers, if there is one."""
    keys = [config.key for config in graph.configs(("fallback",))]
    by_key = {t.plan.config.key: t for t in trials if t.plan.config}
    return next((by_key[key] for key in keys if key in by_key), None)


def _operands(
    operations: Sequence[Descriptor],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor] | None,
    pointers: Mapping[int, int],
) -> _Operands:
    written = {t.uid for t in (_results(operations) if outputs is None else outputs)}
    numbers = [t for t in tensors if t.by_value]
    missing = [t.uid for t in numbers if t.uid not in pointers]
    if missing:
        raise ValueError(
            f"autotune: tensors {missing} are numbers on the host; give their addresses in pointers"
        )
    in_memory = [t for t in tensors if not t.by_value]
    updated = {t.uid for o in operations if o.values.get("beta") for t in _results([o])}
    return _Operands(
        tuple(t for t in in_memory if t.uid not in written),
        tuple(t for t in in_memory if t.uid in written),
        {t.uid: pointers[t.uid] for t in numbers},
        frozenset(updated),
        pointers,
    )


def _results(operations: Sequence[Descriptor]) -> list[Tensor]:
    """The tensors that operations write."""
    found: list[Tensor] = []
    for operation in operations:
        name = type(operation).__name__
        if name not in RESULTS:
            raise ValueError(f"autotune: say which tensors {name} writes, by outputs=[…]")
        values = operation.values
        found += [values[result] for result in RESULTS[name] if values.get(result) is not None]
    return [tensor for tensor in found if not tensor.virtual]


def _name(tensor: Tensor) -> str:
    """The element type's name; types without a check kernel are compared as bytes."""
    name = _NAMES.get(int(tensor.data_type), "uint8")
    return name if name in ITEM_SIZES else "uint8"


def _memory(tensor: Tensor, updated: bool) -> OperandMemory:
    """The bytes from a tensor's first element to its last."""
    name, count = _name(tensor), 1
    for size in tensor.dimensions:
        count *= size
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.dimensions, tensor.strides, strict=True))
    return OperandMemory(span * ITEM_SIZES[name], name, max(0, span - count), updated)
