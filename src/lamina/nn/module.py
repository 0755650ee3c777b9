"""Module: parameters, buffers and other modules under names, and a forward function.

Names, defaults and `state_dict` keys are those of torch.nn, so weights are transferable by name. A module computes
immediately on tensors and records on traced values; its parameters are on the CPU until `to` moves them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from html import escape
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

import numpy as np

from lamina import ops
from lamina.graph.ir.graph import Value
from lamina.nn.hooks import Hook, HookHandle, Hooks
from lamina.nn.mixed_precision import computed, in_compute_type
from lamina.nn.parameter import Buffer, Parameter, become, read, settings_changed, standing_in, traces, write
from lamina.nn.random import Generator, default_generator
from lamina.nn.settings import SameModules
from lamina.nn.state import Mismatch, WithState, loaded, saved
from lamina.ops.arguments import Checked, DTypeLike, checked
from lamina.ops.core import Operand, Recorder, recorder, recording
from lamina.ops.destination import destination
from lamina.ops.origin import enter, explain, leave
from lamina.runtime import Device
from lamina.runtime import device as named_device
from lamina.tensors import Tensor, as_tensor, writable

#: Inputs and outputs of layers: tensors compute immediately, traced values record.
T = TypeVar("T", Tensor, Value)
#: The tables of what a module owns.
_TABLES = ("_parameters", "_buffers", "_modules", "_transient")
#: What to write instead of methods of torch.nn.Module that are not available.
_INSTEAD = {
    **dict.fromkeys(
        ("register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook"),
        "a gradient is changed on its way back by lamina.custom_vjp",
    ),
    "_register_load_state_dict_pre_hook": "it is register_load_state_dict_pre_hook",
    "_register_state_dict_hook": "it is register_state_dict_post_hook",
    "register_module": "it is add_module",
    "type": "it is to(dtype)",
    "compile": "lamina.jit(net) is the compiled network, lamina.train_step compiles its training",
    "share_memory": "workers of data load data alone; lamina.infer.Inferer shares weights among threads",
}
P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class HasForward(Protocol[P, R]):
    """An object with a `forward` of any signature."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function."""


class CallsForward:
    """For type checkers: calling a module has the signature of its own `forward`."""

    @overload
    def __get__(self, module: None, owner: type) -> Self: ...
    @overload
    def __get__(self, module: HasForward[P, R], owner: type) -> Callable[P, R]: ...
    def __get__(self, module: Any, owner: type) -> Any:
        return self if module is None else module.forward


class Module(WithState, Checked):
    """Base of all layers and networks: assign parameters and modules to attributes, define `forward`."""

    #: Whether its parameters keep the master dtype in mixed precision: few numbers, combined with statistics.
    computes_in_master: bool = False
    #: Names of state entries in older files: patterns for the part after the module's path -> today's names.
    older_names: ClassVar[Mapping[str, str]] = {}
    #: State entries that older files lack; they keep their values.
    later_names: ClassVar[tuple[str, ...]] = ()

    _training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module]
    _transient: set[str]  # buffers excluded from the state_dict
    _exchanged: int  # when its own parameters, modules or hooks last changed: a `settings_version`
    _unsettled: set[str]  # attributes assigned while it was traced: not settings

    #: Attributes in which its class caches derived values: not settings.
    _no_settings: ClassVar[Collection[str]] = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Creates the empty tables, so that subclasses need not call super().__init__()."""
        self = super().__new__(cls)
        self.__dict__.update(_training=True, _parameters={}, _buffers={}, _modules={}, _transient=set())
        self.__dict__.update(_exchanged=0, _unsettled=set())
        return self

    def _same_elsewhere(self) -> Callable[[], bool] | None:
        """A guard of what compiled programs depend on outside the module; None if there is nothing."""
        return None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's function, on tensors or traced values."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    if TYPE_CHECKING:
        __call__ = CallsForward()
    else:

        def __call__(self, *inputs: Any, **options: Any) -> Any:
            """`forward` on tensors: NumPy arrays among the arguments become tensors that share their memory."""
            token = enter(self)
            try:
                hooks: Hooks | None = self.__dict__.get("_lamina_hooks")
                by = recorder()
                inputs = tuple([_of_array(x, by) if isinstance(x, np.ndarray) else x for x in inputs])
                if options:
                    options = {
                        k: _of_array(x, by) if isinstance(x, np.ndarray) else x for k, x in options.items()
                    }
                if by is None or not by.lasts:
                    return self._between_hooks(hooks, inputs, options)
                self._watched(by)
                return self._between_hooks(hooks, inputs, options)
            except Exception as error:
                explain(error)
                raise
            finally:
                leave(token)

    def _watched(self, by: Recorder) -> None:
        """Guard the trace: it is valid as long as this module and its submodules are unchanged."""

        def begun() -> SameModules:
            with recording(None):  # inspecting attributes is not a use of them
                same = SameModules(self)
            for module in self.modules():
                by.note(vars(module), lambda: same)
            by.guard(same)
            return same

        by.note(vars(self), begun)

    def _between_hooks(self, hooks: Hooks | None, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if hooks is None:
            return computed(self.forward, inputs, options)
        return hooks.call(self, inputs, options)

    @checked
    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call hook(module, inputs) before `forward`; its return value, if any, replaces the positional inputs.

        with_kwargs: hook(module, inputs, named inputs), which may return both. prepend: ahead of other hooks. A
        compiled program contains the hooks at that time; other hooks cause recompilation.
        """
        return self._own_hooks().add("before", hook, with_kwargs, prepend)

    @checked
    def register_forward_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> HookHandle:
        """Call hook(module, inputs, output) after `forward`; its return value, if any, replaces the output.

        with_kwargs: hook(module, inputs, named inputs, output). prepend: ahead of other hooks. always_call: also if
        `forward` or an earlier hook raises, with None for a missing output.
        """
        return self._own_hooks().add("after", hook, with_kwargs, prepend, always_call)

    @checked
    def register_state_dict_post_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, state, prefix, {}) after `state_dict` has added the module's entries to state."""
        return self._own_hooks().add("saved", hook, False, False)

    @checked
    def register_load_state_dict_pre_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, state, prefix, {}, strict, [], [], []) before `load_state_dict` reads state.

        state is a separate dict, of the whole network, which the hook may change: rename, add, drop, reshape. prefix:
        the prefix of the module's entries.
        """
        return self._own_hooks().add("loading", hook, False, False)

    @checked
    def register_load_state_dict_post_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, mismatch) after `load_state_dict`: keys that it removes from the lists are not errors."""
        return self._own_hooks().add("loaded", hook, False, False)

    def _own_hooks(self) -> Hooks:
        held: Hooks = self.__dict__.setdefault("_lamina_hooks", Hooks(self._note_exchange))
        return held

    def _note_exchange(self) -> None:
        """Invalidate programs compiled with other parameters, modules or hooks."""
        self.__dict__["_exchanged"] = settings_changed()

    @property
    def training(self) -> bool:
        """Whether it is in training mode (dropout is active, batch norm uses batch statistics)."""
        evaluated = _evaluated.get()
        mode = self._training and (evaluated is None or id(self) not in evaluated)
        if (by := recorder()) is not None:
            held = weakref.ref(self)
            by.guard(lambda: (own := held()) is not None and own.training == mode)
        return mode

    @training.setter
    def training(self, mode: bool) -> None:
        self.__dict__["_training"] = mode
        settings_changed()

    # ---- attributes
    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Buffer):
            self.register_buffer(name, value, value.persistent)
            return
        if name in self._buffers:
            self._set_buffer(name, value)
            return
        if (parts := _parametrization(self, name)) is not None:
            parts.assign(value)
            return
        for kind, takes in ((self._parameters, Parameter), (self._modules, Module)):
            # a replacement of the same kind keeps the position of its predecessor
            if name in kind and isinstance(value, Operand) and not isinstance(value, Parameter):
                raise TypeError(
                    f"{type(self).__name__}.{name} is a {takes.__name__.lower()} and cannot become a tensor: write "
                    f"over it, {name}.copy_(…), or assign nn.Parameter(…)"
                )
            if not isinstance(value, takes) and kind.pop(name, None) is not None:
                self._note_exchange()
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.add_module(name, value)
        else:
            if held := _modules_in(value):
                warnings.warn(
                    f"{type(self).__name__}.{name} is a plain {type(value).__name__} that holds {held}: their "
                    "parameters are not trained, moved or saved with it; use nn.ModuleList, nn.ModuleDict or "
                    "nn.Sequential",
                    stacklevel=2,
                )
            if (by := recorder()) is not None:
                by.assigns(self, name)
            object.__setattr__(self, name, value)
            if (by is not None or traces()) and not isinstance(value, bool | str | None):
                self._unsettled.add(name)
            else:
                settings_changed()

    def __getattr__(self, name: str) -> Any:
        # Only called if neither the instance's dictionary nor its class has such an attribute.
        own = self.__dict__
        if (by := recorder()) is not None and by.lasts and "_modules" in own:
            self._watched(by)
        for kind in ("_parameters", "_buffers"):
            if name in own.get(kind, ()):
                held = own[kind][name]
                if held is None:
                    return None
                if kind == "_buffers" and by is not None and by.stands_for(held):
                    return held  # itself, so that it can be written
                return in_compute_type(held, read(held), keeps=self.computes_in_master)
        modules = own.get("_modules", ())
        if name in modules:
            return modules[name]
        if (parts := _parametrization(self, name)) is not None:
            return parts()
        hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        text = f"{type(self).__name__} has no attribute {name!r}{hint}"
        raise AttributeError(text, name=name, obj=self)  # a traceback suggests the nearest of `dir`

    def __dir__(self) -> list[str]:
        own = self.__dict__
        held = (name for kind in ("_parameters", "_buffers", "_modules") for name in own.get(kind, ()))
        return sorted({*object.__dir__(self), *(name for name in held if name.isidentifier())})

    def __delattr__(self, name: str) -> None:
        for kind in (self._parameters, self._buffers, self._modules):
            if name in kind:
                del kind[name]
                self._note_exchange()
                return
        object.__delattr__(self, name)
        settings_changed()

    @checked
    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter under a name; None marks an optional parameter as absent."""
        self._claim_name(name)
        self._parameters[name] = param

    @checked
    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Register a tensor that is state but not trained; excluded from the state_dict unless persistent.

        None marks an optional buffer as absent; it may be assigned later.
        """
        self._claim_name(name)
        self._buffers[name] = None if tensor is None else writable(tensor)
        (self._transient.discard if persistent else self._transient.add)(name)

    @checked
    def add_module(self, name: str, module: Module) -> None:
        """Register another module under a name."""
        self._claim_name(name)
        self._modules[name] = module

    def _claim_name(self, name: str) -> None:
        if not name or "." in name:
            raise ValueError(f"{type(self).__name__}: {name!r} cannot be an attribute's name")
        self.__dict__.pop(name, None)
        self._note_exchange()

    def _set_buffer(self, name: str, value: Any) -> None:
        """Assign to a buffer: in place, or in the current trace."""
        held = self._buffers[name]
        if value is None or held is None:
            self._put_buffer(name, value)
        else:
            write(held, value if isinstance(value, Operand) else as_tensor(value))

    def _put_buffer(self, name: str, value: Any) -> None:
        """Replace a buffer by another tensor, or None: impossible within a trace. Raises TypeError."""
        if isinstance(value, Operand) and not isinstance(value, Tensor):
            raise TypeError(
                f"{type(self).__name__}.{name} is a buffer without a tensor, and one that is computed in a trace has "
                "no numbers to keep: register it with its first values, or call the module once before"
            )
        self._buffers[name] = None if value is None else writable(value)
        self._note_exchange()

    # ---- contents
    @checked
    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """The module itself ("") and all submodules with their dotted names.

        remove_duplicate: each once, under its first name; otherwise under all its names.
        """
        if not remove_duplicate:
            yield from self._all_paths(prefix, ())
            return
        seen: set[int] = set()
        stack = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module
                if module._modules:
                    stack += [(_join(path, n), m) for n, m in reversed(module._modules.items())]

    def _all_paths(self, path: str, above: tuple[Module, ...]) -> Iterator[tuple[str, Module]]:
        """All names of all modules, except those of a module within itself."""
        yield path, self
        for name, child in self._modules.items():
            if child is not self and all(child is not m for m in above):
                yield from child._all_paths(_join(path, name), (*above, self))

    def modules(self) -> Iterator[Module]:
        """The module itself and all submodules."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules, with their names."""
        return iter(self._modules.items())

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        return iter(self._modules.values())

    @checked
    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their dotted names; without recurse only the module's own.

        remove_duplicate: shared ones once, under the first name; otherwise under all names.
        """
        seen: set[int] = set()
        for path, module in self.named_modules(prefix, remove_duplicate) if recurse else [(prefix, self)]:
            for name, held in module._parameters.items():
                if held is not None and not (remove_duplicate and id(held) in seen):
                    seen.add(id(held))
                    yield _join(path, name), held

    @checked
    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, shared ones once; without recurse only the module's own."""
        return (p for _, p in self.named_parameters("", recurse))

    @checked
    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their dotted names, including those outside the state_dict.

        remove_duplicate: those of a shared module once; otherwise under all names.
        """
        for path, module in self.named_modules(prefix, remove_duplicate) if recurse else [(prefix, self)]:
            for name, held in module._buffers.items():
                if held is not None:
                    yield _join(path, name), held

    @checked
    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers; without recurse only the module's own."""
        return (b for _, b in self.named_buffers("", recurse))

    @checked
    def get_submodule(self, target: str) -> Module:
        """The submodule with this dotted name; itself for "". Raises AttributeError."""
        module = self
        for i, name in enumerate(target.split(".") if target else ()):
            if name not in module._modules:
                path = ".".join(target.split(".")[:i]) or type(self).__name__
                known = ", ".join(module._modules) or "none"
                raise AttributeError(f"{path} has no module {name!r}; its modules: {known}")
            module = module._modules[name]
        return module

    @checked
    def set_submodule(self, target: str, module: Module) -> None:
        """Replace the submodule with this dotted name.

        Raises AttributeError if there is none, ValueError for "", TypeError for anything but a module.
        """
        if not isinstance(module, Module):
            raise TypeError(f"set_submodule: module must be a Module, got {type(module).__name__}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        parent.get_submodule(name)
        parent.add_module(name, module)

    @checked
    def get_parameter(self, target: str) -> Parameter:
        """The parameter with this dotted name. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    @checked
    def get_buffer(self, target: str) -> Tensor:
        """The buffer with this dotted name. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return found

    def unregistered(self) -> list[str]:
        """The attributes, here and in submodules, that hold modules in plain lists, tuples or dicts, by dotted name.

        The parameters of such modules are not this one's; nn.ModuleList and nn.ModuleDict register them.
        """
        return [
            _join(path, name)
            for path, module in self.named_modules()
            for name, value in module.__dict__.items()
            if name not in _TABLES and _modules_in(value)
        ]

    def masters(self) -> set[int]:
        """The ids of parameters and buffers that keep the master dtype in mixed precision."""
        own = (m for m in self.modules() if m.computes_in_master)
        return {id(x) for m in own for x in (*m._parameters.values(), *m._buffers.values())}

    def generators(self) -> list[Generator]:
        """The random generators that the module and its submodules may draw from, each once.

        The default one is included: functions draw from it without any attribute referring to it.
        """
        found = (v for m in self.modules() for v in m.__dict__.values() if isinstance(v, Generator))
        return list({id(g): g for g in (*found, default_generator)}.values())

    # ---- state
    @checked
    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """The parameters and persistent buffers by dotted name: the tensors themselves, not copies.

        Shared tensors appear under all their names; the result of `get_extra_state` under "_extra_state".
        destination: a dict to add them to, which is returned. prefix: prepended to every name, including its dot
        ("encoder."). keep_vars: accepted for torch's sake; tensors record no history here.
        """
        return saved(self, destination, prefix, keep_vars)

    @checked
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Mismatch:
        """Copy values by name from tensors or arrays of any library; dtypes are converted.

        strict: exactly the expected keys must be there, except for `older_names` and `later_names` of the modules; of
        a shared tensor's names one suffices. Nothing is written unless everything fits.
        assign: the given tensors become the parameters and buffers, with their dtypes and devices and without a copy
        (but for memory that may not be written). Parameters stay as frozen as they are, and shared ones shared. Make
        optimizers and training steps afterwards: they hold the tensors of before.
        Raises KeyError for missing or unexpected keys, ShapeError for shapes; each lists all of them. With assign,
        DTypeError for trained parameters that are not floats, TypeError within a compiled function.
        """
        return loaded(self, state_dict, strict, assign)

    @checked
    def train(self, mode: bool = True) -> Self:
        """Switch this module and its submodules to training mode or, with False, to inference mode."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch this module and its submodules to inference mode."""
        return self.train(False)

    @checked
    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze all parameters, including submodules', with False: they get no gradient and are not trained."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def to(
        self,
        *where: Device | DTypeLike | Operand | None,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Move to a device and convert floating-point parameters and buffers, in place: object identity is preserved.

        where: a device, a floating-point dtype, both, or a tensor that has them. Raises NoGpuError for a missing GPU.
        """
        place, kind = destination(where, device, dtype)
        if place is None and kind is None:
            return self
        target = None if place is None else named_device(place)
        for held in (*self.parameters(), *self.buffers()):
            become(held, target, kind if held.dtype.is_float else None)
        return self

    def float(self) -> Self:
        """Convert floating-point parameters and buffers to float32, in place."""
        return self.to("float32")

    def double(self) -> Self:
        """Convert floating-point parameters and buffers to float64, in place."""
        return self.to("float64")

    def half(self) -> Self:
        """Convert floating-point parameters and buffers to float16, in place."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """Convert floating-point parameters and buffers to bfloat16, in place."""
        return self.to("bfloat16")

    def cpu(self) -> Self:
        """Move to the CPU, in place."""
        return self.to("cpu")

    def cuda(self, device: int | str | Device = 0) -> Self:
        """Move to a GPU, in place. Raises NoGpuError."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device)

    def zero_grad(self, set_to_none: bool = True) -> NoReturn:
        """Raises TypeError: there are no stored gradients to zero."""
        raise TypeError(
            f"{type(self).__name__}.zero_grad: parameters hold no gradients here: a training step and lm.grad give "
            "those of one call; leave the line out, or gather several by optimizer.accumulate(grads)"
        )

    @checked
    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn on all submodules, then on this module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ---- text
    def extra_repr(self) -> str:
        """The arguments shown in the repr."""
        return ""

    def _repr_html_(self) -> str:
        """For notebooks: the modules as collapsible sections, with parameter counts."""
        return _html("", self, True)

    def __repr__(self) -> str:
        if not self._modules:
            return f"{type(self).__name__}({self.extra_repr()})"
        lines = [f"({name}): {module!r}".replace("\n", "\n  ") for name, module in self._modules.items()]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _parametrization(module: Module, name: str) -> Any:
    """The parametrization that computes the parameter of this name, None if there is none."""
    held = module.__dict__.get("_modules", {}).get("parametrizations")
    return held._modules.get(name) if isinstance(held, Module) else None


def _html(name: str, module: Module, top: bool) -> str:
    """A module and its submodules as nested collapsible sections."""
    label = f"{name}: " if name else ""
    count = sum(p.numel() for p in module.parameters())
    text = f"{label}<b>{escape(type(module).__name__)}</b>({escape(module.extra_repr())})"
    line = text + (f" <small>{count:,} parameters</small>" if count else "")
    inner = "".join(_html(escape(key), child, False) for key, child in module.named_children())
    if not inner:
        return f"<div style='margin-left:1.2em'>{line}</div>"
    opened = " open" if top else ""
    return f"<details{opened} style='margin-left:1.2em'><summary>{line}</summary>{inner}</details>"


@checked
def substitute(module: Module, values: Mapping[str, Any]) -> AbstractContextManager[dict[int, Any]]:
    """Within the block the module's parameters and buffers of these names are replaced by the given operands.

    Raises TypeError unless module is a module and values a mapping, KeyError for a name that the module lacks.
    """
    held = _state_by_name(module)
    unknown = [name for name in values if name not in held]
    if unknown:
        raise KeyError(f"{type(module).__name__} has no parameter or buffer {', '.join(unknown)}")
    return standing_in({id(held[name]): value for name, value in values.items()})


def _state_by_name(module: Module) -> dict[str, Tensor]:
    """Parameters and buffers, shared ones under all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


@checked
def functional_call(
    module: Module,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    inputs: Sequence[Any] | Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*inputs, **kwargs) with the given operands as the parameters and buffers of these names, as
    torch.func.functional_call.

    values: a dict, or several with disjoint names. Any name of a shared tensor works. Writes to a buffer go to the
    tensor given for it (for a traced value they are lost), and the module's own is unchanged. inputs: a tuple or list
    of positional arguments, or a single one. strict: whether values must be complete. tie_weights: False would leave
    the other names of a shared tensor unchanged, which is refused if there are any: a shared tensor is a single one
    here. Raises TypeError for anything but a module and mappings, KeyError for a name that the module lacks, or that
    is missing when strict; ValueError for a duplicate name, and for different values under names of one tensor.
    """
    given = _joined(values)
    held = _state_by_name(module)
    _check_shared(given, held, tie_weights)
    reached = {id(held[name]) for name in given if name in held}
    missing = [name for name, x in held.items() if id(x) not in reached]
    if strict and missing:
        raise KeyError(f"functional_call: values have no {', '.join(missing)} of {type(module).__name__}")
    arguments = inputs if isinstance(inputs, tuple | list) else (inputs,)
    with substitute(module, given) as standing:
        result = module(*arguments, **(kwargs or {}))
        after = {name: standing[id(held[name])] for name in given}
    for name, value in given.items():
        if isinstance(value, Tensor) and after[name] is not value:
            value.copy_(after[name])
    return result


@checked
def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and the buffers of several networks with the same architecture, each stacked along a new first
    axis, as torch.func.stack_module_state: vmap(lambda values, x: functional_call(models[0], values, x))(…) runs all
    of them. The stacked parameters are parameters, which an optimizer trains; frozen ones stay frozen.

    Raises ValueError for an empty list, and for networks that differ in classes, modes, names, shapes or frozen
    parameters.
    """
    if not models:
        raise ValueError("stack_module_state: needs at least one network")
    if len({(type(m), m.training) for m in models}) > 1:
        raise ValueError("stack_module_state: networks must be of one class, all in training mode or none")
    params = [dict(m.named_parameters()) for m in models]
    stacked = _stacked_states(params)
    return (
        {name: Parameter(x, _trained_alike(name, params)) for name, x in stacked.items()},
        _stacked_states([dict(m.named_buffers()) for m in models]),
    )


def _stacked_states(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """By name, a tensor [networks, …]."""
    first = {name: x.spec for name, x in states[0].items()}
    for number, state in enumerate(states):
        if (found := {name: x.spec for name, x in state.items()}) != first:
            other = next(n for n in {**first, **found} if first.get(n) != found.get(n))
            raise ValueError(
                f"stack_module_state: {other} is {found.get(other)} in network {number} and {first.get(other)} in "
                "the first one"
            )
    return {name: ops.stack([state[name].detach() for state in states]) for name in first}


def _trained_alike(name: str, states: Sequence[Mapping[str, Tensor]]) -> bool:
    """Whether the networks train a parameter. Raises ValueError if only some of them do."""
    trained = {state[name].requires_grad for state in states}
    if len(trained) > 1:
        raise ValueError(
            f"stack_module_state: {name} is frozen in some of the networks: requires_grad must be the same"
        )
    return trained.pop()


def _check_shared(given: Mapping[str, Any], held: Mapping[str, Tensor], tie_weights: bool) -> None:
    """Raises ValueError if names of one tensor are given different values, or only some of them are given although
    weights are not tied.
    """
    names: dict[int, list[str]] = {}
    for name, x in held.items():
        names.setdefault(id(x), []).append(name)
    for shared in names.values():
        there = [name for name in shared if name in given]
        if len({id(given[name]) for name in there}) > 1 or (there and there != shared and not tie_weights):
            raise ValueError(
                f"functional_call: {', '.join(shared)} are one tensor, which has one value: give it by one name, "
                "with tie_weights=True"
            )


def _joined(values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Merge dicts. Raises ValueError for a duplicate name."""
    if isinstance(values, Mapping):
        return values
    found: dict[str, Any] = {}
    for part in values:
        if twice := [name for name in part if name in found]:
            raise ValueError(f"functional_call: {', '.join(twice)} is in two of the dicts")
        found.update(part)
    return found


def _of_array(x: np.ndarray[Any, Any], by: Recorder | None) -> Any:
    """A tensor on an array's memory; the array itself if it is not numeric, or if a trace would have to ask for its
    values when it runs.
    """
    if x.dtype.kind in "OSU":
        return x
    made = as_tensor(x)
    return made if by is None or by.knows(made) else x


def _modules_in(value: Any) -> str:
    """The classes of the modules in a plain list, tuple or dict; "" if there are none."""
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return ", ".join(dict.fromkeys(type(m).__name__ for m in entries if isinstance(m, Module)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


#: The ids of the modules in inference mode in this context, whatever their own mode.
_evaluated: ContextVar[frozenset[int] | None] = ContextVar("lamina_evaluated", default=None)


@contextmanager
def evaluating(net: Module) -> Iterator[None]:
    """Within the block the whole network is in inference mode. Other threads see each module's own mode."""
    inside = {id(m) for m in net.modules()} | (_evaluated.get() or set())
    token = _evaluated.set(frozenset(inside))
    try:
        yield
    finally:
        _evaluated.reset(token)
