"""Parts of a converted network that PyTorch still computes: each call of one is one op.

These are modules selected by `from_torch(net, x, exclude=lambda module: ...)`, functions with a custom
gradient (`torch.autograd.Function`), which the exporter would inline and differentiate as if they had none, and hooks
on gradients. While the network's graph is made each of their calls is a node `lamina::torch_module`, whose operands
are the inputs, and a module's parameters and buffers; in the program
that call is the op `TorchModule`. Its gradient, `TorchModuleGrad`, runs the module again and differentiates it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import _SingleLevelFunction
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from lamina import ops
from lamina._tree import flatten, unflatten
from lamina.convert.torch.asked_gradients import AskedGradients
from lamina.convert.torch.exporting import ExportedGraph, Inputs, exporting
from lamina.convert.torch.gradient_hooks import TENSOR, Rule, gradient_hooks, passing, placed, through
from lamina.convert.torch.interpreter import FxProgram
from lamina.convert.torch.node import TorchCall, TorchConversionError, converts
from lamina.convert.torch.report import LeftCalls
from lamina.convert.torch.samples import samples, unknown_sizes, with_values
from lamina.convert.torch.stand_ins import is_valueless, running_code
from lamina.ops.core import Array, bind
from lamina.ops.custom import CustomOp
from lamina.spec import DTYPES, Spec, as_dtype

Tensors: TypeAlias = Sequence[torch.Tensor]
#: Which modules stay with PyTorch.
Exclude: TypeAlias = Callable[[torch.nn.Module], Any]
#: While a module runs, its parameters, its modes and PyTorch's generator are set: one runs at a time.
_RUNNING = threading.RLock()
#: The calls that graphs refer to, as long as a graph has them.
_CALLS: weakref.WeakValueDictionary[str, StayingCall] = weakref.WeakValueDictionary()


class StayingCall:
    """One call of a module in a network's graph. Operands: its inputs, then its parameters, then its buffers.

    written: the operands that it overwrites, whose new values follow its results.
    """

    def __init__(
        self, path: str, module: torch.nn.Module, forward: Callable[..., Any], inputs: Inputs
    ) -> None:
        self.path, self.module, self.inputs = path, module, inputs
        self.body = _OwnForward(module, forward)
        self.state = [n for n, _ in (*module.named_parameters(), *module.named_buffers())]
        self.buffers = len(list(module.buffers()))
        self.modes = [(m, m.training) for m in module.modules()]
        self.written: tuple[int, ...] = ()
        self.others: dict[int, Any] = {}  # results that are no tensors, by place
        self.sampled = False  # whether its results' shapes are known from sample values alone
        self._specs: dict[tuple[Spec, ...], tuple[Spec, ...]] = {}

    @property
    def trains(self) -> bool:
        """Whether it may draw random numbers, with a seed as an additional operand, and overwrite its buffers."""
        return any(training for _, training in self.modes)

    @property
    def kind(self) -> str:
        """The module's class, or the kind of function."""
        return self.module.kind if isinstance(self.module, _Applied) else type(self.module).__name__

    def __repr__(self) -> str:
        return f"{self.path} ({self.kind})"

    def operands(self, tensors: Tensors) -> list[torch.Tensor]:
        """The operands of a call with these inputs, while a graph is made."""
        return [*tensors, *self.module.parameters(), *self.module.buffers()]

    def shown(self, operands: Tensors) -> list[torch.Tensor]:
        """Valueless results and new values for valueless operands; records the nesting of the results."""
        unknown = unknown_sizes(operands)
        before = len(unknown)
        try:
            with _Writes() as writes, AskedGradients():
                results = self._results(operands)
        except Exception:
            # Its code reads values (an assignment by SciPy, a choice at random), which must not decide shapes.
            del unknown[before:]
            operands = samples(operands)
            with with_values(), _Writes() as writes:
                results = self._results(operands)
            self.sampled = True
        # Norms overwrite running statistics without declaring it in their schema.
        kept = range(len(operands) - self.buffers * self.trains, len(operands))
        self.written = tuple(i for i, x in enumerate(operands) if i in kept or _memory(x) in writes.memory)
        found = (*results, *(operands[i] for i in self.written))
        return [torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in found]

    def specs(self, given: tuple[Spec, ...]) -> tuple[Spec, ...]:
        """Shapes and dtypes of the results of `run`."""
        if given not in self._specs:
            mode = with_values() if self.sampled else FakeTensorMode(allow_non_fake_inputs=True)
            with mode, _RUNNING, self._in_mode():
                empty = [torch.empty(s.shape, dtype=getattr(torch, s.dtype.name)) for s in given]
                found = self._run(samples(empty) if self.sampled else empty)
            self._specs[given] = tuple(map(_spec, found))
        return self._specs[given]

    def run(self, operands: Tensors, seed: Any = None) -> list[torch.Tensor]:
        """Results, then new values of written operands."""
        with _RUNNING, self._in_mode(), _seeded(seed):
            others, versions = self.others, [x._version for x in operands]
            found = self._run(operands)
        if self.sampled:
            self._check(operands, others, found)
            if versions != [x._version for x in operands]:
                raise TorchConversionError(f"{self} stays PyTorch's and wrote an input at some values only")
        return found

    def _check(self, operands: Tensors, others: dict[int, Any], found: Tensors) -> None:
        """Raises TorchConversionError for results other than those of sample values."""
        want = self.specs(tuple(map(_spec, operands)))
        if tuple(map(_spec, found)) != want or self.others != others:
            made = ", ".join(map(str, (*map(_spec, found), *self.others.values())))
            expected = ", ".join(map(str, (*want, *others.values())))
            raise TorchConversionError(
                f"{self} stays PyTorch's and returned {made}, not {expected}: its values may decide what its "
                "results hold, not their shapes or what is no tensor. Return tensors of fixed shapes, or exclude "
                "the module around it"
            )

    def gradients(
        self, operands: Tensors, seed: Any, grads: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Those of the floating point inputs and parameters, from the gradients of the results of `run`."""
        leaves = [x.detach() for x in operands]
        wanted = [x.requires_grad_() for x in leaves[: len(leaves) - self.buffers] if x.is_floating_point()]
        with torch.enable_grad():
            found = self.run(leaves, seed)
            pairs = [(y, g) for y, g in zip(found, grads, strict=True) if g is not None and y.requires_grad]
            if not pairs:
                return [torch.zeros_like(x) for x in wanted]
            ys, gs = zip(*pairs, strict=True)
            made = torch.autograd.grad(ys, wanted, gs, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, made, strict=True)]

    def opened(self, given: Sequence[Spec]) -> FxProgram:
        """A function's forward pass as a program. Raises TorchConversionError for a module, and unknown calls."""
        if not isinstance(self.module, _Applied):
            raise TorchConversionError(f"{self} stays PyTorch's: only PyTorch can compute it")
        samples = tuple(torch.zeros(s.shape, dtype=getattr(torch, s.dtype.name)) for s in given)
        with exporting():
            program = FxProgram(torch.export.export(_Opened(self), samples, strict=False).module())
        if unknown := LeftCalls().add(program.unknown()):
            raise TorchConversionError(f"{self}: without a counterpart: {'; '.join(unknown)}")
        return program

    def _run(self, operands: Tensors) -> list[torch.Tensor]:
        own = [x.clone() if i in self.written else x for i, x in enumerate(operands)]
        return [*self._results(own), *(own[i] for i in self.written)]

    def _results(self, operands: Tensors) -> list[torch.Tensor]:
        tensors = operands[: len(operands) - len(self.state)]
        args, kwargs = self.inputs.arguments(tensors)
        state = dict(zip((f"module.{n}" for n in self.state), operands[len(tensors) :], strict=True))
        leaves, self.structure = flatten(
            torch.func.functional_call(self.body, state, args, kwargs), open_dataclasses=True
        )
        self.others = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
        if any(isinstance(x, np.ndarray) for x in self.others.values()):
            raise TorchConversionError(
                f"{self} returns NumPy's arrays, which no program holds: return tensors"
            )
        return [x for x in leaves if isinstance(x, torch.Tensor)]

    def nested(self, results: Tensors) -> Any:
        """Results as the module nests them."""
        made = iter(results)
        count = len(results) + len(self.others)
        return unflatten(
            self.structure, [self.others[i] if i in self.others else next(made) for i in range(count)]
        )

    @contextmanager
    def _in_mode(self) -> Iterator[None]:
        before = [(m, m.training) for m, _ in self.modes]
        for m, training in self.modes:
            m.training = training
        try:
            yield
        finally:
            for m, training in before:
                m.training = training


class _Opened(torch.nn.Module):
    """A call as a function of its operands."""

    def __init__(self, call: StayingCall) -> None:
        super().__init__()
        self.call = call

    def forward(self, *operands: torch.Tensor) -> Any:
        return tuple(self.call._results(operands))


class _OwnForward(torch.nn.Module):
    """A module's own `forward`: its hooks are part of the graph around it."""

    def __init__(self, module: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.own = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.own(*args, **kwargs)


class _Writes(TorchDispatchMode):
    """Records which memory is written within the block."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        placed = zip(func._schema.arguments, args, strict=False)
        named = [(a, (kwargs or {}).get(a.name)) for a in func._schema.arguments]
        for argument, value in (*placed, *named):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.memory |= {
                    _memory(x)
                    for x in flatten(value, open_dataclasses=True)[0]
                    if isinstance(x, torch.Tensor)
                }
        return func(*args, **(kwargs or {}))


def _spec(x: torch.Tensor) -> Spec:
    return Spec(tuple(x.shape), as_dtype(str(x.dtype)[6:]))


def _memory(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


@contextmanager
def _seeded(seed: Any) -> Iterator[None]:
    """Within the block PyTorch's generators start from a seed; afterwards they continue as if nothing had
    been drawn."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(int(seed))
        yield


def _run_call(operands: list[torch.Tensor], call: str) -> list[torch.Tensor]:
    return _CALLS[call].run(operands)


def _show_call(operands: list[torch.Tensor], call: str) -> list[torch.Tensor]:
    return _CALLS[call].shown(operands)


#: The graph's representation of one call of a module.
_torch_module = torch.library.custom_op("lamina::torch_module", _run_call, mutates_args=())
_torch_module.register_fake(_show_call)
has_side_effect(torch.ops.lamina.torch_module.default)


def staying(network: torch.nn.Module, exclude: Exclude | None) -> tuple[str, ...]:
    """The paths of the outermost modules for which `exclude` is true; for a list of modules those in it.

    Raises ValueError if that is the whole network, TypeError if `exclude` is no function.
    """
    if exclude is None:
        return ()
    if not callable(exclude):
        raise TypeError(
            f"from_torch: exclude is a function of a module (lambda m: isinstance(m, Head)), got {exclude!r}"
        )
    found = tuple(dict.fromkeys(_chosen(network, "", exclude, False)))
    if "" in found:
        raise ValueError(
            f"exclude is true for the whole network, {type(network).__name__}: nothing is left to convert"
        )
    return found


def _chosen(module: torch.nn.Module, path: str, exclude: Exclude, whole: bool) -> Iterator[str]:
    whole = whole or bool(exclude(module))
    if whole and type(module).forward is not torch.nn.Module.forward:
        yield path
        return
    for name, child in module.named_children():
        yield from _chosen(child, f"{path}.{name}".lstrip("."), exclude, whole)


@contextmanager
def standing(network: torch.nn.Module, paths: Iterable[str]) -> Iterator[list[StayingCall]]:
    """Within the block each call of these modules, of functions with a custom gradient and of hooks on
    gradients becomes one node of a graph; yields the list of the calls. Within another such block that one's hold.
    """
    calls: list[StayingCall] = []
    if "apply" in vars(_SingleLevelFunction):
        yield calls
        return
    modules = {path: network.get_submodule(path) for path in paths}
    for path, module in modules.items():
        module.forward = partial(_stand_in, calls, path, module, module.forward)
    _SingleLevelFunction.apply = classmethod(partial(_applied, calls))
    try:
        with gradient_hooks(partial(_passed, calls)):
            yield calls
    finally:
        del _SingleLevelFunction.apply
        for module in modules.values():
            del module.forward


def _applied(calls: list[StayingCall], function: Any, *args: Any) -> Any:
    """A call of a `torch.autograd.Function`. Checkpoints are replaced by their calls; PyTorch's other ones are
    inlined.

    Raises TorchConversionError if it is passed a function, which could hide parameters, while a graph is made.
    """
    apply = super(_SingleLevelFunction, function).apply
    leaves = flatten(args, open_dataclasses=True)[0]
    if not any(map(is_valueless, leaves)):  # another thread's, or within a part left to PyTorch
        return apply(*args)
    if function is CheckpointFunction:
        run, _, *inputs = args
        return run(*inputs)
    if function.__module__.startswith("torch."):
        return apply(*args)
    if any(map(callable, leaves)) and (code := running_code()) is not None:
        return code.apply(function, args)
    if any(map(callable, leaves)):
        raise TorchConversionError(
            f"the autograd function {function.__name__} calls a function that it is given, which hides parameters: "
            "exclude the module that calls it"
        )
    return _stand_in(calls, function.__name__, _Applied("autograd.Function"), apply, *args)


def _passed(calls: list[StayingCall], name: str, rule: Rule, tensors: Tensors) -> Tensors:
    """A call of an identity function with a rule for its gradients."""
    found: Tensors = _stand_in(calls, name, _Applied("gradient"), partial(passing, rule), *tensors)
    return found


def hooked(hooks: Sequence[Callable[..., Any]]) -> TorchModule:
    """The op that applies a parameter's hooks."""
    inputs, _ = Inputs.of((torch.empty(0),), {})
    call = StayingCall("a parameter's hooks", _Applied("gradient"), partial(passing, through(hooks)), inputs)
    return TorchModule(call)


class _Applied(torch.nn.Module):
    """A part without parameters and modes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.eval()


def _stand_in(
    calls: list[StayingCall], path: str, module: torch.nn.Module, forward: Any, *args: Any, **kwargs: Any
) -> Any:
    inputs, tensors = Inputs.of(args, kwargs)
    call = StayingCall(path, module, forward, inputs)
    calls.append(call)
    _CALLS[str(id(call))] = call
    operands = call.operands(tensors)
    found = torch.ops.lamina.torch_module(operands, str(id(call)))
    count = len(found) - len(call.written)
    for i, value in zip(call.written, found[count:], strict=True):
        operands[i].copy_(value)
    return call.nested(found[:count])


def call_of(number: str) -> StayingCall:
    """The call that a node represents."""
    return _CALLS[number]


@converts("lamina::torch_module")
def torch_module(call: TorchCall) -> Any:
    """A call of a module left to PyTorch."""
    held: StayingCall = call.node.meta["stays"]
    place: Any = call.device
    seed = [ops.randint(0, 2**31 - 1, (1,), device=place)] if held.trains else []
    return list(bind(TorchModule(held), *call["operands"], *seed))


def mark(graph: ExportedGraph, calls: Iterable[StayingCall]) -> ExportedGraph:
    """Attach the called object to each node that represents a call, and place the hooks of tensors."""
    named = {str(id(c)): c for c in calls}
    nodes = [n for n in graph.program.nodes() if n.target is torch.ops.lamina.torch_module.default]
    for node in nodes:
        node.meta["stays"] = held = named[str(node.args[1])]
        if held.path == TENSOR:
            placed(node)
    return replace(graph, program=FxProgram(graph.program.graph_module)) if nodes else graph


@dataclass(frozen=True)
class _ByTorch(CustomOp, abstract=True):
    """An op computed by PyTorch, which allocates memory as it runs and whose code may read values."""

    call: StayingCall
    arity = None
    capturable = False
    dtypes = DTYPES

    def computed(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs."""
        raise NotImplementedError

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        """By PyTorch on the CPU."""
        return tuple(_array(y) for y in self.computed(list(map(_shown, arrays))))

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        """By PyTorch, on the stream."""
        with _on_stream(inputs, stream):
            for place, y in zip(outputs, self.computed(list(map(_shown, inputs))), strict=True):
                _shown(place).copy_(y.detach())

    def _split(
        self, given: list[torch.Tensor], more: int = 0
    ) -> tuple[list[torch.Tensor], Any, list[torch.Tensor]]:
        """(operands, seed, gradients)."""
        before, grads = given[: len(given) - more], given[len(given) - more :]
        return (before[:-1], before[-1], grads) if self.call.trains else (before, None, grads)


@dataclass(frozen=True)
class TorchModule(_ByTorch):
    """One call of a module left to PyTorch: its operands, then a seed if it may draw random numbers."""

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        """By PyTorch, on fake tensors."""
        return self.call.specs(inputs[:-1] if self.call.trains else inputs)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """By PyTorch's autograd."""
        given = tuple(g is not None for g in grads)
        found = iter(bind(TorchModuleGrad(self.call, given), *inputs, *(g for g in grads if g is not None)))
        count = len(inputs) - self.call.trains - self.call.buffers
        return [next(found) if i < count and x.dtype.is_float else None for i, x in enumerate(inputs)]

    def composed(self, *inputs: Any) -> Sequence[Any]:
        """The forward pass of a function written with ops: for models without gradients."""
        return tuple(self.call.opened([x.spec for x in inputs])(*inputs).outputs)

    def computed(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """Results, then new values of written operands."""
        operands, seed, _ = self._split(given)
        with torch.enable_grad():  # for gradients that it asks for; no operand requires one
            return [y.detach() for y in self.call.run(operands, seed)]


@dataclass(frozen=True)
class TorchModuleGrad(_ByTorch):
    """The gradients of the floating point inputs and parameters: operands are those of `TorchModule`, then the
    gradients of its results, if any.
    """

    given: tuple[bool, ...]
    differentiable = False

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        """The specs of the differentiated inputs."""
        count = len(inputs) - sum(self.given) - self.call.trains - self.call.buffers
        return tuple(s.open for s in inputs[:count] if s.dtype.is_float)

    def computed(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients."""
        operands, seed, grads = self._split(given, sum(self.given))
        own = iter(grads)
        return self.call.gradients(operands, seed, [next(own) if there else None for there in self.given])


def _on_stream(inputs: Sequence[Any], stream: int) -> AbstractContextManager[None]:
    """On a GPU, the stream as PyTorch's current one."""
    if not any(hasattr(x, "pointer") for x in inputs):
        return nullcontext()
    there: AbstractContextManager[None] = torch.cuda.stream(torch.cuda.ExternalStream(stream))
    return there


def _shown(x: Any) -> torch.Tensor:
    """An array's memory as a PyTorch tensor; a copy if it is not writable."""
    if not isinstance(x, np.ndarray):
        return (
            torch.from_dlpack(x)
            if hasattr(x, "__dlpack__") and not isinstance(x, np.generic)
            else torch.tensor(x)
        )
    x = x if x.flags.writeable else x.copy()
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _array(y: torch.Tensor) -> Array:
    y = y.detach().contiguous()
    if y.dtype == torch.bfloat16:
        found: Array = y.view(torch.uint16).numpy().view(as_dtype("bfloat16").numpy)
        return found
    whole: Array = y.numpy()
    return whole
