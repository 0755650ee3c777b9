"""A recorded graph as a function of PyTorch's tensors, under its autograd, on its stream, on its parameters.

The forward and the backward pass of a call share a context: memory in which the first leaves the values that the
second reads. A context is released when its backward pass has run, or can no longer be requested; so several forward
passes may be in flight, each with its own context. The outputs of a call (results, gradients) are in PyTorch's
memory, and are never overwritten by a later call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

from lamina.backends import NoKernel
from lamina.convert.torch.leaving import SMALL, Leaving, copy_all, dense_strides, plain
from lamina.convert.torch.memory import current_stream, is_capturing, is_lendable, lent, shown
from lamina.convert.torch.recording import RecordedGraph, derivative
from lamina.graph.run.call_tuning import CallTuner
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.two_pass import TwoPassContext, TwoPassProgram
from lamina.runtime import Device, Stream

#: How often a parameter's memory may move before it is copied in each call instead of being read in place.
MOVES = 4
#: The range of the numbers from which a random generator's state is drawn.
_SEEDS = 1 << 53


class DoubleBackwardError(RuntimeError):
    """A second derivative was requested of a program with an op that only has a first one."""


class CompiledGraph:
    """Forward and backward pass for tensors of given shapes.

    recorded: the graph. tensors: examples of the tensors among the arguments. stays: which of them keep their memory
    from call to call (parameters, buffers), and are read in place. unsaved: which of them PyTorch's autograd would
    not save for the backward pass, so that they may be written before it. tuner: tunes it between forward passes.
    """

    def __init__(
        self,
        recorded: RecordedGraph,
        tensors: Sequence[torch.Tensor],
        stays: Sequence[int],
        device: Device,
        unsaved: Sequence[int] = (),
        tuner: CallTuner | None = None,
    ) -> None:
        self.recorded, self.device = recorded, device
        # Values that the forward pass overwrites and the gradients depend on are copied: gradients need the old
        # values.
        moved = set(recorded.overwritten)
        #: The written arguments except parameters and buffers: another argument may overlap one of these in memory.
        self.written = [i for i in recorded.written if i not in stays]
        self.stays = [i for i in stays if i not in moved and _lies_on(tensors[i], device)]
        self.executable = TwoPassProgram(
            recorded.graph,
            device,
            recorded.early,
            lent=self.stays,
            late=recorded.late,
            updates=self._updates(tensors),
            together=self._small(),
        )
        self.calls: Any = self.executable  # or a wrapper that schedules its tuning
        if tuner is not None:
            self.calls = tuner.calls(self.executable, self)
        self._settle()
        if early := set(unsaved).intersection(self.read_late):
            self._copy(early)
        #: Tensors that autograd saves: as many in each call (`checkpoint` counts them), whatever is copied later.
        self.saved = self.read_late
        self.fixed = [i for i in range(recorded.results) if i not in recorded.arriving]
        #: The strides of the gradients: as autograd keeps them; it copies gradients with others.
        self.strides = [dense_strides(tensors[i]) for i in recorded.wanted]
        self._free: dict[int, list[_CallMemory]] = {}
        self._moves = 0
        self._derivatives: dict[tuple[bool, ...], CompiledGraph] = {}
        self._unmoved: dict[frozenset[int], set[int]] = {}

    def _settle(self) -> None:
        """Derive the lists that depend on `stays`."""
        stays, written = set(self.stays), set(self.recorded.written)
        late = set(self.executable.read_late()) - written
        updated = stays.intersection(self.executable.in_place)
        self.copied = [i for i in range(self.recorded.tensors) if i not in stays]
        #: Tensors that the backward pass reads in PyTorch's memory: they must be unchanged since the forward pass.
        self.read_late = [i for i in self.stays if i in late]
        #: Further tensors that must be unchanged for a derivative of the gradients; autograd checks those read late.
        looked_after = written.union(self.read_late)
        self.others = [i for i in range(self.recorded.tensors) if i not in looked_after]
        #: Tensors that the forward pass writes in place, and copied ones: (number of the write, argument).
        self.updated = sorted(updated)
        self.rewritten = [(k, i) for k, i in enumerate(self.recorded.written) if i not in updated]

    def _copy(self, unfit: Collection[int]) -> None:
        """Copy these arguments in each call instead of reading them in place."""
        self.stays = [i for i in self.stays if i not in unfit]
        self._settle()

    def _updates(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        """The tensors that may be written in place (running statistics), and the output with the new value."""
        outputs = enumerate(self.recorded.written, self.recorded.results)
        return {i: k for k, i in outputs if i in self.stays and not tensors[i].is_inference()}

    def _small(self) -> list[int]:
        """The outputs that are gradients of parameters and are returned as one piece of memory: small ones, of the
        most frequent dtype.
        """
        outputs, stays = self.recorded.graph.outputs, set(self.stays)
        gradients = [k for k, i in enumerate(self.recorded.wanted, self.recorded.early) if i in stays]
        small = [k for k in gradients if outputs[k].spec.nbytes <= SMALL]
        kinds = Counter(outputs[k].dtype for k in small)
        return [k for k in small if outputs[k].dtype == kinds.most_common(1)[0][0]]

    def unmoved(self, missing: frozenset[int]) -> set[int]:
        """Which of the outgoing gradients depend on no incoming ones except those that are missing."""
        if missing not in self._unmoved:
            self._unmoved[missing] = self.recorded.unmoved(missing)
        return self._unmoved[missing]

    def derivative(self, tensors: Sequence[torch.Tensor]) -> CompiledGraph:
        """The gradients as a differentiable function: of the tensors, the random generator's state at the
        forward pass, and the incoming gradients, of which those that need a gradient get one.

        Raises the errors of ops without a second derivative.
        """
        needs = tuple([g.requires_grad for g in tensors[self.recorded.late.start :]])
        found = self._derivatives.get(needs)
        if found is None:
            with collector_paused(), torch.no_grad():
                recorded = derivative(self.recorded, needs)
                found = CompiledGraph(recorded, tensors, self.stays, self.device)
            self._derivatives[needs] = found
        return found

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The results. With gradients, if the graph was recorded with them."""
        if self.recorded.wanted:
            differentiated = [tensors[i] for i in self.recorded.wanted]
            if torch._C._are_functorch_transforms_active():
                return _TwoPasses.apply(self, tensors, *differentiated)  # type: ignore[no-any-return]
            return _apply(self, tensors, *differentiated)  # type: ignore[no-any-return]
        grads = torch.is_grad_enabled()
        if grads:
            torch._C._set_grad_enabled(False)
        try:
            context, results = self.forward(tensors)
            context.give_back()
            return results
        finally:
            if grads:
                torch._C._set_grad_enabled(True)

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[_CallMemory, list[torch.Tensor]]:
        """The results of the forward pass, and the context with the values that the backward pass reads."""
        calls = self.calls
        if calls is self.executable or not calls.is_due() or is_capturing(self.device):
            context = self.take(tensors)
            return context, context.forward(tensors)
        planned = self.executable.program
        with calls.looked_at():
            if self.executable.program is not planned:  # contexts of other plans are not reused
                for free in self._free.values():
                    free.clear()
                self._free = {}
            context = self.take(tensors)
            return context, context.forward(tensors)

    def take(self, tensors: Sequence[torch.Tensor]) -> _CallMemory:
        """A free context, bound to the current memory of the parameters."""
        stream = current_stream(self.device)
        free = self._free.setdefault(stream.handle if stream else 0, [])
        context = free.pop() if free else _CallMemory(self, tensors, stream, free)
        context.turn += 1
        addresses = _addresses(tensors, self.stays)
        if addresses != context.addresses:
            context = self._moved(context, tensors)
        return context

    def _moved(self, context: _CallMemory, tensors: Sequence[torch.Tensor]) -> _CallMemory:
        """The context bound to other memory. Tensors that move repeatedly are copied from then on."""
        self._moves += 1
        unfit = [i for i in self.stays if not is_lendable(tensors[i])]
        if self._moves > MOVES:
            pairs = zip(self.stays, context.addresses, strict=True)
            unfit += [i for i, address in pairs if tensors[i].data_ptr() != address]
        if unfit:
            self._copy(unfit)
            self._free, self._moves = {}, 0
            return self.take(tensors)
        context.move(tensors)
        return context


def _addresses(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> list[int]:
    """The addresses of some of the tensors."""
    return list(map(torch.Tensor.data_ptr, [tensors[i] for i in places]))


def _lies_on(x: torch.Tensor, device: Device) -> bool:
    """Whether a tensor may be read in place."""
    return is_lendable(x) and x.device.type == device.kind


class _CallMemory:
    """The memory and kernels of one call at a time, as PyTorch tensors.

    turn: counts the calls: a reader with another count than its own has lost the values of its forward pass.
    """

    def __init__(
        self,
        owner: CompiledGraph,
        tensors: Sequence[torch.Tensor],
        stream: Stream | None,
        home: list[_CallMemory],
    ) -> None:
        self.owner, self.recorded, self._home, self.turn = owner, owner.recorded, home, 0
        self.stays, self.copied = owner.stays, owner.copied
        self.updated, self.rewritten, self.others = owner.updated, owner.rewritten, owner.others
        written = set(self.recorded.written)
        self.unwritten = [i for i in self.stays if i not in written]
        buffers = {i: lent(tensors[i], owner.device) for i in self.stays}
        self.passes = TwoPassContext(owner.executable, buffers, stream)
        self.addresses = _addresses(tensors, self.stays)
        self._show()

    def _show(self) -> None:
        """Inputs and outputs as PyTorch tensors."""
        recorded, passes = self.recorded, self.passes
        places = {i: shown(x) for i, x in passes.places.items()}
        self.given = [places[i] for i in self.copied]
        self.states = [places[i] for i in range(recorded.tensors, recorded.tensors + recorded.random)]
        self.arriving = [places[i] for i in recorded.late]
        outputs = [recorded.results + k for k, _ in self.rewritten]
        self.written = [plain(shown(passes.result(i))) for i in outputs]
        results = [shown(passes.result(i)) for i in range(recorded.results)]
        self.results = Leaving(results, [None] * recorded.results)
        late = [shown(passes.result(i)) for i in range(recorded.early, len(recorded.graph.outputs))]
        offsets = {i - recorded.early: offset for i, offset in self.owner.executable.offsets.items()}
        block = shown(passes.block) if offsets else None
        self.leaving = Leaving(late, self.owner.strides, block, offsets)

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        """Rebind lent tensors whose memory has moved."""
        self.passes.lend({i: lent(tensors[i], self.owner.device) for i in self.stays})
        self.addresses = _addresses(tensors, self.stays)
        self._show()

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the forward pass: returns the results, and writes new values to the written arguments."""
        self.fill(tensors)
        for state in self.states:
            state.random_(_SEEDS)
        self.passes.forward()
        results = self.results.copies()
        copy_all(self.written, [tensors[i] for _, i in self.rewritten])
        if self.updated:
            torch.autograd.graph.increment_version([tensors[i] for i in self.updated])
        return results

    def forward_again(self, tensors: Sequence[torch.Tensor]) -> None:
        """Rerun the forward pass, only for the values that the backward pass reads."""
        updated = [tensors[i].data for i in self.updated]  # without version counters
        kept = [x.clone() for x in updated]
        self.passes.forward()
        copy_all(kept, updated)

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the arguments into their input memory."""
        copy_all([tensors[i] for i in self.copied], self.given)

    def backward(self, grads: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the backward pass: a gradient for each argument that needs one, in order."""
        copy_all(grads, self.arriving)
        self.passes.backward()
        return self.leaving.copies()

    def give_back(self) -> None:
        """Release it for another call."""
        self._home.append(self)


class _Ticket:
    """Owner of a context from the forward pass until the backward pass can no longer be requested.

    spent: the backward pass has consumed the values of the forward pass. versions: those of the tensors that are read
    in place, at that backward pass, if its graph was kept.
    """

    __slots__ = ("context", "spent", "versions")

    def __init__(self, context: _CallMemory) -> None:
        self.context: _CallMemory | None = context
        self.spent, self.versions = False, [0]

    def backward(self, grads: list[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients. If a kept graph is used again, the forward pass is rerun first.

        tensors: the arguments of the forward pass.
        """
        context = self.context
        assert context is not None
        if self.spent and _versions(tensors, context.unwritten) != self.versions:
            raise RuntimeError(
                "backward a second time: a parameter or buffer was overwritten since the first time, and the forward "
                "pass would give something else now; call the model again"
            )
        if self.spent:
            context.forward_again(tensors)
        found = context.backward(grads)
        if torch._C._autograd._get_current_graph_task_keep_graph():
            self.spent, self.versions = True, _versions(tensors, context.unwritten)
        else:
            self.give_back()
        return found

    def give_back(self) -> None:
        """Release the context for another call."""
        context, self.context = self.context, None
        if context is not None:
            context.give_back()

    def __del__(self) -> None:
        self.give_back()


class _TwoPasses(torch.autograd.Function):
    """A compiled graph as one function to autograd."""

    @staticmethod
    def forward(
        ctx: Any, compiled: CompiledGraph, tensors: Sequence[torch.Tensor], *differentiated: torch.Tensor
    ) -> Any:
        """The results. differentiated: the tensors that need a gradient."""
        context, results = compiled.forward(tensors)
        ctx.ticket, ctx.compiled = _Ticket(context), compiled
        ctx.tensors, ctx.versions = tensors, _versions(tensors, context.others)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[tensors[i] for i in compiled.saved])
        if compiled.fixed:
            ctx.mark_non_differentiable(*[results[i] for i in compiled.fixed])
        return tuple(results)

    # Dynamo would decompose these functions if a compiled function asks for gradients.
    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The gradients of the tensors that need one."""
        ctx.saved_tensors  # noqa: B018 - raises where a tensor was overwritten, or the graph is freed
        recorded = ctx.compiled.recorded
        arriving, missing = _arriving(ctx, grads)
        found: Sequence[Any]
        if torch.is_grad_enabled():
            found = _differentiable(ctx, arriving)
        else:
            found = ctx.ticket.backward(arriving, ctx.tensors)
        if missing:  # a parameter of a head without a loss has no gradient, as in eager mode
            none = {k for k in ctx.compiled.unmoved(missing) if _may_lack(ctx.tensors[recorded.wanted[k]])}
            found = [None if k in none else g for k, g in enumerate(found)]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.tensors = ()
        return None, None, *found


#: `_TwoPasses.apply` outside of torch.func's transformations: it skips PyTorch's check for them.
_apply = super(torch.autograd.Function, _TwoPasses).apply


def _arriving(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[list[torch.Tensor], frozenset[int]]:
    """The incoming gradients, zeros for unused results, and the numbers of those."""
    given = [grads[i] for i in ctx.compiled.recorded.arriving]
    missing = frozenset(k for k, g in enumerate(given) if g is None)
    if not missing:
        return given, missing
    places = ctx.ticket.context.arriving
    return [torch.zeros_like(p) if g is None else g for p, g in zip(places, given, strict=True)], missing


def _may_lack(x: torch.Tensor) -> bool:
    """Whether a tensor may lack a gradient: hooks would be called with None, where PyTorch calls none."""
    return x.is_leaf and not x._backward_hooks and not x._post_accumulate_grad_hooks


def _differentiable(ctx: Any, arriving: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The gradients of a call, as a function of all that they depend on; if an op has no second derivative, as
    tensors that raise when they are differentiated.
    """
    recorded, context = ctx.compiled.recorded, ctx.ticket.context
    if _versions(ctx.tensors, context.others) != ctx.versions:
        raise RuntimeError(
            "backward with create_graph=True: a tensor that the compiled model read was overwritten since; call the "
            "model again"
        )
    tensors = list(ctx.tensors)
    for i in recorded.overwritten:  # values that the forward pass overwrote are unchanged in its context
        tensors[i] = context.given[context.copied.index(i)].clone()
    given = [*tensors, *(x.clone() for x in context.states), *arriving]
    try:
        gradients = ctx.compiled.derivative(given)
    except (TypeError, ValueError, NotImplementedError, NoKernel) as error:
        with torch.no_grad():
            found = ctx.ticket.backward(arriving, ctx.tensors)
        made: Sequence[torch.Tensor] = _Once.apply(str(error), *[g.requires_grad_() for g in found])
        return made
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.ticket.give_back()
    found = gradients(given)
    return [g if g.requires_grad else _Constant.apply(g, *ctx.tensors) for g in found]


def _versions(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> list[int]:
    """The versions of some of the tensors."""
    return [tensors[i]._version for i in places]


class _Constant(torch.autograd.Function):
    """A gradient that does not depend on the inputs, as where a network is piecewise linear:
    PyTorch nevertheless differentiates it, to zeros.
    """

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """The gradient unchanged."""
        ctx.kinds = [(x.shape, x.dtype, x.device) for x in tensors]
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Zeros for all inputs that need a gradient."""
        made: list[torch.Tensor | None] = [None]
        for needs, (shape, dtype, device) in zip(ctx.needs_input_grad[1:], ctx.kinds, strict=True):
            made.append(torch.zeros(shape, dtype=dtype, device=device) if needs else None)
        return tuple(made)


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, reason: str, *grads: torch.Tensor) -> Any:
        """The gradients unchanged."""
        ctx.reason = reason
        return tuple(g.view_as(g) for g in grads)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Raises DoubleBackwardError."""
        raise DoubleBackwardError(
            "torch.compile(backend='lamina'): a gradient was differentiated again (create_graph=True), which has no "
            f"gradient: {ctx.reason}; call the model without compiling it for that term (torch.compiler.disable, or "
            "compiled._orig_mod)"
        )
