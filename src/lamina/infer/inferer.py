"""Serving: one set of weights, many threads, requests gathered into batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lamina._tree import Structure
from lamina.graph import Executable, Graph, compile
from lamina.graph.ir.batch_axis import Batch, batch_of, output_axes
from lamina.infer.predictor import Predictor, drawn
from lamina.infer.programs import GatheredProgram, ServedProgram, host, resized
from lamina.infer.saving import save_plan
from lamina.infer.serving import ProgramUse, RequestKind, Serving, check_numbers, default_contexts
from lamina.nn import Module
from lamina.ops.arguments import checked_method
from lamina.ops.core import BatchAxis
from lamina.runtime import Buffer, Device, human_bytes, renew_after_fork
from lamina.spec import Policy, Spec, current_policy
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, array_spec, as_tensor, flatten_arrays

Array = np.ndarray[Any, Any]

_log = logging.getLogger("lamina.infer")


class Inferer(Serving):
    """A network that answers requests of many threads: inferer(inputs) -> outputs, in host memory.

    There is one set of weights. Each concurrent call has its own memory, and on a GPU its own stream and CUDA graph
    (up to `contexts` of them). Three ways to ask, for any number of threads:

        inferer(x)              waits for the answer
        inferer.submit(x)       a concurrent.futures.Future of it, which can be cancelled until it runs
        await inferer.ask(x)    for asyncio

    With `max_batch` above 1 requests are gathered (dynamic batching): a run takes up to that many samples. It begins
    when it is full, when its first request has waited for `max_wait_ms`, or, where filling takes longer than a run,
    with `max_batch / contexts` samples, so that the host works for one run while the device works on another; while
    all contexts are busy it fills. Requests share a run only where the ops of the network prove that samples are
    independent (`Op.batch_axes`) and a trial at the first request shows that a sample's result does not depend, in
    any bit, on its place and its neighbors; otherwise each has its own run. All requests of a kind use one program,
    of `max_batch` samples however full, so that an answer is the same, bit by bit, however many threads ask. The
    error of a request is that request's alone.

    Nothing is tuned while it serves, because other plans would give other bits: it uses the tuning results of a
    `Predictor`, a compiled function, or training on the same machine at the time its programs are made, and keeps
    them.

    Args:
        net: the network; it is used in inference mode, as `Predictor` does. Its weights are read when a program is
            made, and at `refresh`.
        device, precision, backend: as for `Predictor`.
        max_batch: samples that share a run; 1 gathers nothing.
        max_wait_ms: how long the first request of a batch waits for others.
        batch_axis: the axis of the inputs that holds the samples; all inputs have as many.
        contexts: the maximum number of concurrent calls. Default: on a GPU 8 (2 where requests are gathered), on a
            CPU one per core (1 where they are gathered, which uses all cores).
        queue_limit: the maximum number of unanswered requests of `submit`, `ask` and gathered calls.
        when_full: "wait" lets `submit` wait for room, "raise" has it raise QueueFull.
        max_programs: kinds of inputs (shapes, dtypes, structures) whose programs are cached; the least recently used
            is evicted.

    Raises ValueError for numbers below their minimum, or another `when_full`.
    """

    @checked_method
    def __init__(
        self,
        net: Module,
        *,
        device: Device | str = "auto",
        precision: str | Precision | None = None,
        backend: str | None = None,
        max_batch: int = 1,
        max_wait_ms: float = 1.0,
        batch_axis: int = 0,
        contexts: int | None = None,
        queue_limit: int = 1024,
        when_full: str = "wait",
        max_programs: int = 16,
    ) -> None:
        check_numbers(
            "Inferer",
            when_full,
            max_batch=(max_batch, 1),
            max_wait_ms=(max_wait_ms, 0),
            contexts=(1 if contexts is None else contexts, 1),
            queue_limit=(queue_limit, 1),
            max_programs=(max_programs, 1),
        )
        self.max_programs = max_programs
        self._predictor = _Serving(net, device=device, precision=precision, backend=backend, tuning=False)
        self._predictor.contexts = contexts or default_contexts(self._predictor.device, max_batch)
        super().__init__(
            f"Inferer of {type(net).__name__}",
            max_batch=max_batch,
            max_wait_ms=max_wait_ms,
            batch_axis=batch_axis,
            contexts=self._predictor.contexts,
            queue_limit=queue_limit,
            when_full=when_full,
        )
        self._uses: dict[RequestKind, ProgramUse] = {}  # the most recently used last
        self._programs: dict[RequestKind, ServedProgram] = {}
        # Kinds of whole batches whose trial failed, the latest last:
        self._alone: dict[RequestKind, None] = {}
        self._making = threading.RLock()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: another thread may have been compiling."""
        self._making = threading.RLock()

    @property
    def net(self) -> Module:
        """The network."""
        return self._predictor.net

    @property
    def device(self) -> Device:
        """The device."""
        return self._predictor.device

    def __reduce__(self) -> str:
        raise TypeError(
            "an Inferer holds compiled programs and threads and cannot be pickled; pickle its network"
        )

    def __repr__(self) -> str:
        nbytes = sum(x.nbytes for x in self._predictor._held.values())
        gathered = f", batches of {self.max_batch}" if self.max_batch > 1 else ""
        head = f"Inferer({type(self.net).__name__}, {self._predictor.precision} on {self.device}{gathered}; "
        head += f"weights {human_bytes(nbytes)}, up to {self.contexts} calls at a time)"
        return "\n".join([head, *(f"  {p!r}" for p in self._programs.values())])

    def flattened(self, inputs: Any) -> tuple[list[Any], Structure]:
        """The arrays in the inputs, and their structure. Raises TypeError."""
        return flatten_arrays(inputs, "Inferer")

    def spec_of(self, x: Any) -> Spec:
        """Shape and dtype of one of them."""
        return array_spec(x)

    def policy(self) -> Policy:
        """The current policy."""
        return current_policy()

    # ---- programs
    def save(self, path: str | Path, *, portable: bool = True) -> None:
        """Write the existing programs to a file, from which `lamina.infer.load` answers immediately.

        Call the inferer once for each kind of inputs before. The file holds the weights in their memory layout, the
        chosen kernels (on a GPU their machine code) and the memory plan; it is for this kind of machine and these
        versions of the libraries. portable: it also holds the graphs and the original weights, so that the plans can
        be made anew on another machine.

        Raises ValueError where there is no program yet, or one that cannot be saved; OSError.
        """
        serving = {
            "max_batch": self.max_batch,
            "max_wait_ms": self.max_wait_ms,
            "batch_axis": self.batch_axis,
            "queue_limit": self.queue_limit,
            "when_full": self.when_full,
        }
        with self._making:
            programs = list(self._programs.items())
            save_plan(self._predictor, programs, path, portable=portable, serving=serving)

    def refresh(self) -> None:
        """Load weights that were changed since the programs were made; runs that have begun end first.

        If a module's numbers, hooks or submodules were changed, programs are made anew at the next request.
        """
        with self._making:
            if self._predictor.renewed():
                self._programs.clear()
                self._uses.clear()
                self._alone.clear()
            done: list[Executable] = []
            for program in self._programs.values():
                self._predictor._load(program.executable, done)
                done.append(program.executable)

    def known(self, kind: RequestKind) -> ProgramUse | None:
        """The cached program for a kind of inputs, if any."""
        found = self._uses.get(kind)
        if found is not None and len(self._programs) >= self.max_programs:
            with self._making:  # in the order of use, where that matters
                self._programs[found.key] = self._programs.pop(found.key, found.program)
        return found

    def made(self, kind: RequestKind, given: Sequence[Any], count: int) -> ProgramUse:
        """The program for a kind of inputs, made at the first request. Raises the network's errors for it."""
        with self._making:
            if kind not in self._uses:
                use = None
                if self.max_batch > 1 and 0 < count <= self.max_batch:
                    use = self._gathered(kind, given, count)
                if use is None:
                    graph, structure, generators = self._predictor.traced(kind.structure, kind.specs)
                    program = _CompiledAlone(self._loaded(graph), structure)
                    program.graph, program.generators = graph, generators
                    use = ProgramUse(program, kind, max(count, 1))
                self._programs[use.key] = use.program
                self._uses[kind] = use
                self._forget()
            return self._uses[kind]

    def _loaded(self, graph: Graph) -> Executable:
        """The executable of a graph on the weights; it shares the weights transformed for other programs."""
        executable = self._predictor.compiled(graph)
        self._predictor._load(executable, [p.executable for p in self._programs.values()])
        return executable

    def _forget(self) -> None:
        """Evict the least recently used programs."""
        while len(self._programs) > self.max_programs:
            oldest = next(iter(self._programs))
            del self._programs[oldest]
            self._uses = {k: u for k, u in self._uses.items() if u.key != oldest}
        while len(self._alone) > self.max_programs:
            del self._alone[next(iter(self._alone))]

    def _gathered(self, kind: RequestKind, given: Sequence[Any], count: int) -> ProgramUse | None:
        """The program that answers requests of a kind together with others, if that changes no bit."""
        axes = [self.batch_axis % s.ndim for s in kind.specs]
        most, one = (
            kind._replace(specs=tuple([resized(s, a, n) for s, a in zip(kind.specs, axes, strict=True)]))
            for n in (self.max_batch, 1)
        )
        if most in self._alone:
            return None
        # the request's own first: if the network refuses it, the error should tell its shapes
        fewer = {n: s for n, s in ((count, kind.specs), (1, one.specs)) if n < self.max_batch}
        small = [self._predictor.traced(kind.structure, specs).graph for specs in fewer.values()]
        large, structure, _ = self._predictor.traced(kind.structure, most.specs)
        parts = [part for graph in small if (part := _part(graph, large)) is not None]
        if len(parts) < len(small):
            _log.info("Inferer: %s mixes the samples of a batch: requests run alone", type(self.net).__name__)
            return None
        # a request of a whole batch that ran alone has left its program under the same key
        if not isinstance(self._programs.get(most), GatheredProgram):
            batch, outputs = parts[-1]  # of one sample
            inputs = batch.axes[len(self._predictor._held) :]
            executable = self._loaded(large)
            program = _CompiledBatch(
                executable, structure, self.max_batch, inputs, outputs, self._first(given, axes)
            )
            program.graph = large
            if not program.is_placeless():
                _log.info(
                    "Inferer: results of %r depend on places in a batch: requests run alone", executable
                )
                self._alone[most] = None
                return None
            self._programs[most] = program
        return ProgramUse(self._programs[most], most, count)

    def _first(self, given: Sequence[Any], axes: Sequence[int]) -> list[Array]:
        """The first sample of each input."""
        return [host(x).take([0], axis) for x, axis in zip(given, axes, strict=True)]


class _Serving(Predictor):
    """A Predictor whose executables serve several concurrent calls."""

    contexts = 1

    def compiled(self, graph: Graph) -> Executable:
        """The executable of a traced graph."""
        return compile(
            graph, self.device, resident=range(len(self._held)), backend=self.backend, contexts=self.contexts
        )


class _CompiledAlone(ServedProgram):
    """A ServedProgram of an executable, which may draw random numbers."""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of one run."""
        if self.generators:
            return drawn(self.executable, inputs, self.generators)
        return super().run(inputs)


class _CompiledBatch(GatheredProgram):
    """A GatheredProgram of an executable: tensors go in, in pinned memory, and come out."""

    def array_in(self, place: Buffer, spec: Spec) -> Tensor:
        """A tensor, so that an executable knows that its memory is pinned."""
        return Tensor(place, spec.fixed)

    def given_out(self, x: Array) -> Tensor:
        """A tensor."""
        return as_tensor(x)


def _part(small: Graph, large: Graph) -> tuple[Batch, tuple[BatchAxis | None, ...]] | None:
    """How the larger graph computes the smaller one for samples at any place, if it does."""
    batch = batch_of([v.spec for v in small.inputs], [v.spec for v in large.inputs])
    axes = None if batch is None else output_axes(small, large, batch, anywhere=True)
    return None if batch is None or axes is None else (batch, axes)
