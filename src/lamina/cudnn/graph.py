"""A small builder over the descriptors: name tensors and operations, get plans.

graph = Graph()
x = graph.tensor((8, 64, 56, 56), (200704, 1, 3584, 64), "bfloat16")
w = graph.tensor((128, 64, 3, 3), (576, 1, 192, 64), "bfloat16")
y = graph.tensor((8, 128, 56, 56), (401408, 1, 7168, 128), "bfloat16")
graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
plan = graph.plan(handle)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lamina.c.errors import CudnnError
from lamina.cudnn.autotune import Accept, Plain, autotune
from lamina.cudnn.builder import Operations
from lamina.cudnn.engine import (
    Candidates,
    Engine,
    EngineConfig,
    Key,
    OperationGraph,
    Target,
    key_text,
    note_filter,
)
from lamina.cudnn.explain import Explanation, explain
from lamina.cudnn.finalize import attempt, finalized
from lamina.cudnn.handle import Handle
from lamina.cudnn.plan import ExecutionPlan, KernelCache
from lamina.cudnn.store import PlanStore
from lamina.cudnn.tensor import Tensor
from lamina.runtime.arena import checked_bytes


class NoPlanError(RuntimeError):
    """No engine computes a graph; `reasons` says why each was rejected or refused."""

    def __init__(self, graph: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        listing = (
            "".join(f"\n  - {reason}" for reason in self.reasons) or "\n  - no heuristic named an engine"
        )
        super().__init__(f"cuDNN has no plan for {graph}:{listing}")


class Graph(Operations):
    """A graph that is built with the methods of `Operations`, and its plans.

    Args:
        compute: type of the arithmetic, unless an operation sets its own.
        dynamic: plans may be made again for other sizes with kernels from a `KernelCache` (cuDNN 9.4).
        override: plans may be run on other sizes, which the `VariantPack` names (cuDNN 9.21).
    """

    def __init__(
        self, compute: str | int = "float32", *, dynamic: bool = False, override: bool = False
    ) -> None:
        super().__init__(compute)
        self.dynamic, self.override = dynamic, override

    # -- plans ----------------------------------------------------------------------------------------------

    def build(self, target: Target) -> OperationGraph:
        """The operation graph for a handle or for device properties. Raises CudnnError."""
        return OperationGraph(self.operations, target, dynamic=self.dynamic, override=self.override)

    def engines(self, target: Target) -> list[Engine]:
        """Every engine that accepts the graph, by number. Raises CudnnError when the graph itself is refused."""
        return self.build(target).engines()

    def explain(self, target: Target) -> Explanation:
        """Why each engine refuses the graph, and the nearest graph that one accepts, found by trying."""
        return explain(self.operations, target, str(self))

    def candidates(
        self,
        target: Target,
        modes: Sequence[str | int] = ("a", "fallback"),
        *,
        sm_count: int | None = None,
        wrong: bool = False,
    ) -> Candidates:
        """Engine configurations of several heuristics, best first, each once.

        wrong: also those of engines whose results for this graph are known to be wrong (`known_wrong`).
        """
        try:
            return self.build(target).configs(modes, sm_count=sm_count, wrong=wrong)
        except CudnnError as error:
            return Candidates([], [f"graph: {error.code}: {error.message}"])

    def plans(
        self,
        target: Target,
        modes: Sequence[str | int] = ("a", "fallback"),
        *,
        workspace_limit: int | None = None,
        accept: Accept | None = None,
        refusals: list[str] | None = None,
        require: Iterable[str | int] = (),
        forbid: Iterable[str | int] = (),
        sm_count: int | None = None,
        kernel_cache: KernelCache | None = None,
    ) -> Iterator[ExecutionPlan]:
        """The possible plans, best first, made lazily.

        Engines known to give wrong results for the graph, or not to terminate, are skipped (`known_wrong`).

        Args:
            target: the handle or the device properties.
            modes: heuristics to query.
            workspace_limit: bytes; plans that need more are skipped.
            accept: says why a configuration is unwanted, "" when it is wanted.
            refusals: a list to which the reasons are appended.
            require, forbid: notes that an engine must and must not have: "tensor_core", "nondeterministic",
                "runtime_compilation", "supports_cuda_graph_native_api", …
            sm_count: how many multiprocessors of the GPU to plan for.
            kernel_cache: where compiled kernels are found and kept, for a graph that is `dynamic`.
        """
        reasons = [] if refusals is None else refusals
        if workspace_limit is not None:
            checked_bytes("plan", "workspace_limit", workspace_limit)
        notes = note_filter(require, forbid)
        try:
            built = self.build(target)
        except CudnnError as error:
            reasons.append(f"graph: {error.code}: {error.message}")
            return
        for config in built.ranked(modes, reasons, sm_count=sm_count):
            unwanted = notes(config) or (accept(config) if accept else "")
            if unwanted:
                reasons.append(f"{key_text(config.key)}: {unwanted}")
                continue
            plan = attempt(config, target, workspace_limit=workspace_limit, kernel_cache=kernel_cache)
            if isinstance(plan, str):
                reasons.append(plan)
                continue
            yield plan

    def plan(
        self,
        target: Target,
        modes: Sequence[str | int] = ("a", "fallback"),
        *,
        workspace_limit: int | None = None,
        accept: Accept | None = None,
        require: Iterable[str | int] = (),
        forbid: Iterable[str | int] = (),
        sm_count: int | None = None,
        kernel_cache: KernelCache | None = None,
    ) -> ExecutionPlan:
        """The first of `plans`. Raises NoPlanError with all the reasons."""
        reasons: list[str] = []
        found = self.plans(
            target,
            modes,
            workspace_limit=workspace_limit,
            accept=accept,
            refusals=reasons,
            require=require,
            forbid=forbid,
            sm_count=sm_count,
            kernel_cache=kernel_cache,
        )
        for plan in found:
            return plan
        raise NoPlanError(str(self), reasons)

    def autotune(
        self,
        handle: Handle,
        *,
        pointers: Mapping[int, int] | None = None,
        workspace_limit: int | None = None,
        deterministic: bool = False,
        tf32: bool = False,
        tolerance: float | None = None,
        plain: Plain | None = None,
        accept: Accept | None = None,
        outputs: Sequence[Tensor] | None = None,
        store: PlanStore | None = None,
    ) -> ExecutionPlan:
        """The fastest plan with correct results, found by trying, and remembered on disk.

        The next call for the same graph and options, in this process or another, takes it from the store and times
        nothing. The heuristic's first plan is kept unless another is faster by 2 % and by a microsecond. The caller's
        memory is not written: candidates run on copies.

        Args:
            handle: of the GPU.
            pointers: uid -> address of an input's values (by default random numbers in [-1, 1)). Tensors that are
                `by_value` need theirs.
            workspace_limit: bytes; by default a quarter of the free memory, 4 GiB at most. Nothing above it is
                allocated or tried.
            deterministic: only engines with bitwise reproducible results.
            tf32: float32 may be rounded to TF32.
            tolerance: the largest ||result - expected|| / ||expected||; by default that of the element type.
            plain: computes the reference: called with uid -> address and the stream. By default it is the first
                plan of the "fallback" heuristic.
            accept: says why a configuration is unwanted, "" when it is wanted.
            outputs: the tensors that are written, where an operation is none of `autotune.RESULTS`.
            store: another store than `plan_store` of the device.

        Raises:
            NoPlanError: no candidate is correct; the reasons say why for each.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"autotune: candidates run on a GPU; handle must be a Handle, got {handle!r}")
        reasons: list[str] = []
        found = autotune(
            self.build(handle),
            [t for t in self.tensors if not t.virtual],
            str(self),
            handle,
            pointers=pointers or {},
            workspace_limit=workspace_limit,
            deterministic=deterministic,
            tf32=tf32,
            tolerance=tolerance,
            plain=plain,
            accept=accept,
            outputs=outputs,
            store=store,
            refusals=reasons,
        )
        if found is None:
            raise NoPlanError(str(self), reasons)
        return found

    def rebuild(self, target: Target, key: Key) -> ExecutionPlan:
        """The plan of a known engine number and knob values (`EngineConfig.key`). Raises CudnnError, ValueError."""
        if not isinstance(key, tuple | list) or len(key) != 2:
            raise ValueError(
                f"rebuild: key must be (engine, ((knob, value), …)), as EngineConfig.key; got {key!r}"
            )
        return finalized(EngineConfig(self.build(target), key[0], dict(key[1])), target)

    def plan_engine(
        self, target: Target, engine: int, knobs: Mapping[int, int] | None = None
    ) -> ExecutionPlan:
        """The plan of one engine by its number, with knob values or the engine's own. Raises CudnnError."""
        return finalized(EngineConfig(self.build(target), engine, knobs), target)

    def __str__(self) -> str:
        shown = [
            f"{t.data_type.name.removeprefix('CUDNN_DATA_').lower()}{list(t.dimensions)}"
            for t in self.tensors
            if not t.virtual
        ]
        return f"{' -> '.join(self._titles)} on {', '.join(shown)}"
