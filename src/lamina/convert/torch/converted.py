"""`from_torch`: a PyTorch module as a Lamina module of the same names, computed by the module's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import torch

from lamina.convert.torch.calling import CodeKinds, run_code
from lamina.convert.torch.deciding import OtherPath, Path, Rehearsal, is_prefix
from lamina.convert.torch.decoding import DecodingCache, continued, empty_cache, encoded, has_encoder
from lamina.convert.torch.exporting import (
    EXPORTING,
    DecidedError,
    DecidingCall,
    ExportedGraph,
    GraphResults,
    Inputs,
    NoGraphError,
    UnknownCallError,
    export,
)
from lamina.convert.torch.following import FollowingParameter
from lamina.convert.torch.known_numbers import Values
from lamina.convert.torch.memory import real_form
from lamina.convert.torch.node import TorchConversionError, known
from lamina.convert.torch.norm import synchronized
from lamina.convert.torch.objects import assign
from lamina.convert.torch.report import ConversionReport, LeftCalls
from lamina.convert.torch.source import OF_EVERY_MODULE, SourceParts, SourceSettings, tied
from lamina.convert.torch.stand_ins import StandInError
from lamina.convert.torch.staying import Exclude, TorchModule, hooked, mark, standing, staying
from lamina.graph.ir.call_numbers import known_now, warn_of_many
from lamina.nn import Module, Parameter
from lamina.nn.hooks import Hook, HookHandle
from lamina.nn.parameter import read, settings_changed, write
from lamina.nn.random import default_generator
from lamina.ops.core import Operand, bind, recorder, recording
from lamina.runtime import Device
from lamina.runtime.ranks import current_world
from lamina.spec import DType, DTypeError, Group, Shape, as_dtype, bfloat16, float32
from lamina.tensors import Tensor, as_tensor, tensor

#: The maximum number of graphs cached for a network: one for each mode and kind of inputs.
GRAPHS = 64
#: Which modules train, and the dtypes of the inputs.
Modes: TypeAlias = tuple[bool, ...]
DTypes: TypeAlias = tuple[str, ...]


class ConvertedPart(Module):
    """A PyTorch module's parameters and buffers, under the same names; its function is part of the whole network's
    graph.
    """

    def __init__(self, source: torch.nn.Module, adopted: dict[int, Any], share: bool) -> None:
        self.source_class, self.computes_in_master = type(source).__name__, False
        self.__dict__ |= {"_training": source.training, "_of": source}
        self.__dict__["_own"] = frozenset((*self.__dict__, "_own"))
        for name, p in source._parameters.items():
            self.register_parameter(name, None if p is None else _adopted(p, adopted, share))
        for name, b in source._buffers.items():
            if b is not None:
                self.register_buffer(
                    name, _adopted(b, adopted, share), name not in source._non_persistent_buffers_set
                )
        for name, child in source._modules.items():
            if child is not None:
                self.add_module(name, ConvertedPart(child, adopted, share))

    def __getattr__(self, name: str) -> Any:
        if self._is_of_source(name):
            return vars(self._of)[name]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Plain attributes (`dropout.p`) are those of PyTorch's module, from which graphs are made."""
        if self._is_of_source(name):
            setattr(self._of, name, value)
        elif name in self.__dict__.get("_own", ()) and self._has(name):
            object.__setattr__(self, name, value)
            settings_changed()
        else:
            super().__setattr__(name, value)

    def add_module(self, name: str, module: Module) -> None:
        """Register a part of the network. Raises TypeError for another module, which its graphs would not call."""
        if not isinstance(module, ConvertedPart):
            raise TypeError(
                f"{self.source_class}.{name} cannot become a {type(module).__name__}: graphs are made from PyTorch's "
                f"modules, and would not call it; replace {name} in the PyTorch module (network.source) and convert "
                "that again"
            )
        super().add_module(name, module)

    def _claim_name(self, name: str) -> None:
        """What PyTorch's module registers may have the name of an attribute of this class, which keeps it: the
        tensor or module is found by its path (`get_buffer("source")`).
        """
        kept = {n: value for n, value in self.__dict__.items() if n == name and n in self._own}
        super()._claim_name(name)
        self.__dict__ |= kept

    def _has(self, name: str) -> bool:
        """Whether a parameter, buffer or module is registered under this name."""
        return name in self._parameters or name in self._buffers or name in self._modules

    def _is_of_source(self, name: str) -> bool:
        source = self.__dict__.get("_of")
        own = name in self.__dict__ or name in OF_EVERY_MODULE or hasattr(type(self), name)
        return source is not None and not own and name in vars(source)

    def register_forward_pre_hook(self, hook: Hook, **options: bool) -> HookHandle:
        """As `nn.Module`'s, of the whole network. Raises TypeError for a part."""
        self._require_whole("register_forward_pre_hook")
        return super().register_forward_pre_hook(hook, **options)

    def register_forward_hook(self, hook: Hook, **options: bool) -> HookHandle:
        """As `nn.Module`'s, of the whole network. Raises TypeError for a part."""
        self._require_whole("register_forward_hook")
        return super().register_forward_hook(hook, **options)

    def _require_whole(self, method: str) -> None:
        if not isinstance(self, ConvertedModule):
            raise TypeError(
                f"{method}: {self.source_class} is part of a converted network, of which its graph is called: "
                f"register the hook on PyTorch's module (network.source.get_submodule(path).{method}), where the "
                "network's next call finds it"
            )

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Only the whole network computes."""
        raise TypeError(f"{self.source_class} is part of a converted network: call the network")

    def extra_repr(self) -> str:
        """The original class."""
        return self.source_class


class ConvertedModule(ConvertedPart):
    """A PyTorch network that runs by Lamina's ops. It has the network's parameters, buffers and modes.

    A graph is made for each mode (of all its modules) and kind of inputs at the first such call; the batch axis,
    axis 0, may have any size if the network allows.
    """

    _no_settings = ("_graphs", "_hooks", "_parts", "_settings", "_tied", "_code")

    def __init__(
        self, source: torch.nn.Module, share: bool, stays: tuple[str, ...] = (), fullgraph: bool = False
    ) -> None:
        self.source, self.stays, self.fullgraph = source, stays, fullgraph
        self._code = CodeKinds(type(source).__name__)
        self.process_group: Group | None = None  # the ranks over which batch norm statistics are synchronized
        self._graphs: list[tuple[Modes, Inputs, DTypes, SourceSettings, ExportedGraph]] = []
        self._hooks: dict[str, tuple[tuple[Any, ...], TorchModule]] = {}
        self._parts = SourceParts(source)
        self._settings: SourceSettings | None = None  # as they were at the last call
        self._tied = tied(source)
        super().__init__(source, {}, share)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles make their graphs anew: PyTorch's cannot be copied or pickled."""
        return {
            **self.__dict__, "_graphs": [], "_hooks": {}, "_settings": None, "_code": CodeKinds(self.source_class)
        }  # fmt: skip

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs, nested as the module nests them, for inputs nested as it takes them.

        Where no graph can be made, or each call would take another one, the module's own code is run call by call.
        Raises TorchConversionError where that cannot be either: with `fullgraph`, in an export, in a training step of
        several ranks.
        """
        inputs, tensors = Inputs.of(args, kwargs)
        operands = [x if isinstance(x, Operand) else as_tensor(_plain(x)) for x in tensors]
        reason: NoGraphError | None = None
        try:
            found = self._by_graph(inputs, operands)
        except UnknownCallError:
            raise
        except NoGraphError as error:
            reason = error
        if reason is not None:
            found = self._by_code(inputs, operands, reason)
        _require_apart(operands, found.inputs)
        for name, value in found.state.items():
            path, _, own = name.rpartition(".")
            part = self.get_submodule(path)
            if (held := part._parameters.get(own)) is not None:
                write(held, value)  # a training step goes on from there
            elif (before := part._buffers[own]) is not None and before.shape == value.shape:
                part._set_buffer(own, value)
            else:
                part._put_buffer(own, value)
        for number, value in found.inputs.items():
            operand = operands[number]
            if isinstance(operand, Tensor) and not operand.read_only:
                operand.copy_(value)  # the caller's own memory, as in PyTorch; a program's arguments stay
        assign((args, kwargs), found.attributes)
        return found.results

    @property
    def has_encoder(self) -> bool:
        """Whether it is a language model of transformers that reads its prompt by an encoder of its own."""
        return has_encoder(self.source)

    def encoded(self, inputs: Any, attention_mask: Any = None) -> tuple[Any, ...]:
        """What `continued` of a language model with an encoder needs of the prompt: the encoder's results (B, S, C),
        and the mask (B, S) if there is one.
        """
        return encoded(self, inputs, attention_mask)

    def empty_cache(self, batch: int, length: int, encoded: Sequence[Any] = ()) -> DecodingCache:
        """A zeroed cache of fixed size for `length` tokens of `batch` texts, of a language model of transformers; for
        `continued` and `lamina.infer.generate`. Raises TypeError for other networks.

        encoded: what `encoded` gives, if the model has an encoder.
        """
        device = next((p.device for p in self.parameters()), Device("cpu"))
        return empty_cache(self.source, batch, length, device, encoded)

    def continued(
        self,
        input_ids: Any,
        cache: DecodingCache,
        position: Any,
        attention_mask: Any = None,
        encoded: Sequence[Any] = (),
    ) -> tuple[Any, DecodingCache]:
        """Logits for the tokens input_ids (B, L) at position, position + 1, … of a text, given a cache of the earlier
        ones, and the cache, which is written: of all tokens (B, L, V), or of the last one (B, 1, V) where the model
        can leave out the others.

        attention_mask: (B, length of the cache), 0 at the padding on the left of shorter texts. encoded: as in
        `empty_cache`.
        """
        return continued(self, input_ids, cache, position, attention_mask, encoded)

    def _by_code(self, inputs: Inputs, operands: list[Any], reason: NoGraphError) -> GraphResults:
        """What the module's own code gives, of which each call is computed at once."""
        if not self._may_run_code(operands):
            raise reason if self.fullgraph else UnknownCallError(*reason.args)
        try:
            with EXPORTING, synchronized(self.process_group), _modes(self.source, self):
                found = run_code(self.source, self.stays, inputs, _State(self), operands)
        except TorchConversionError as error:
            raise error from reason
        self._code.warn(reason)
        return found

    def _may_run_code(self, operands: Sequence[Any]) -> bool:
        """Whether the module's own code may compute a call instead of a graph; a record of the call then serves it
        alone."""
        by = recorder()
        return not self.fullgraph and (_is_computed(operands) or (by is not None and by.serves_once()))

    def _by_graph(self, inputs: Inputs, operands: list[Any]) -> GraphResults:
        """What the graph of the path that these operands take gives: that of the last call, and others from the first
        number that is another on."""
        in_a_row = self._code.in_a_row
        graph = self.graph(inputs, operands)
        drawn = _GeneratorBefore() if graph.draws else None
        path: Path = ()
        while True:
            try:
                with synchronized(self.process_group):
                    found = graph(_State(self), operands)
            except OtherPath as other:
                if len(other.path) <= len(path):
                    raise TorchConversionError(
                        f"{self.source_class}: decides in Python by numbers that differ whenever they are computed"
                    ) from None
                path = other.path
                if drawn is not None:
                    drawn.restore()
                graph = self.graph(inputs, operands, path)
                drawn = drawn or (_GeneratorBefore() if graph.draws else None)
                continue
            if path:
                self._use_first(graph)
            if self._code.in_a_row == in_a_row:
                self._code.in_a_row = 0
            return found

    def _use_first(self, graph: ExportedGraph) -> None:
        """Try a graph before all others of its kind in the next call."""
        with EXPORTING:
            self._graphs = sorted(self._graphs, key=lambda kept: kept[-1] is graph)

    def synchronize_batch_norms(self, process_group: Group | None) -> None:
        """Use batch statistics of the group's ranks from now on; None is all ranks.

        `nn.SyncBatchNorm.convert_sync_batchnorm` calls it. PyTorch's SyncBatchNorm in the source does so by itself.
        """
        self.process_group = process_group or Group(*range(current_world().size))

    def _same_elsewhere(self) -> Callable[[], bool]:
        """Whether the source's plain attributes and the buffers that decide are unchanged, and its parts those that
        were converted. The function does not keep the network.
        """
        settings = SourceSettings(self.source)
        decided = {name: self._value(name) for *_, graph in self._graphs for name in graph.decided}
        there = ref(self)

        def same() -> bool:
            net = there()
            return (
                net is not None
                and net._exchanged_part() is None
                and settings.same()
                and net._has_values(decided)
            )

        return same

    def _exchanged_part(self) -> str | None:
        """The name of a part or parameter of the source that is another one than when it was converted."""
        if self._parts.exchanged() is None:
            return None
        with EXPORTING:  # another thread's export replaces parameters for its time
            return self._parts.exchanged()

    def graph(self, inputs: Inputs, operands: list[Any], path: Path = ()) -> ExportedGraph:
        """The graph for the current mode, the source's current attributes, and such inputs.

        path: the first of the numbers by which the code decides in this call.
        """
        if (name := self._exchanged_part()) is not None:
            raise TorchConversionError(
                f"from_torch: the part {name!r} of {self.source_class} is another one than when it was converted, "
                "whose parameters this network does not have: convert the network again"
            )
        self._require_tied()
        if self._settings is None or not self._settings.same():
            self._settings = SourceSettings(self.source)
        settings = self._settings
        modes = tuple(part.training for part in self.modules())
        dtypes = tuple(_as_in(self.source, x.dtype) for x in operands)
        shapes = [tuple(x.shape) for x in operands]
        kind = modes, dtypes, settings, inputs, shapes
        found = self._known(*kind, path)
        if found is not None:
            return found
        with EXPORTING:
            found = self._known(*kind, path)
            if found is None:
                self._code.require_graph((modes, inputs, dtypes), self.fullgraph)
                try:
                    found = self._new(*kind, operands, path)
                except UnknownCallError:
                    raise
                except NoGraphError as error:
                    self._code.add((modes, inputs, dtypes), error)
                    raise
        return found

    def _rehearsed(self, inputs: Inputs, operands: Sequence[Any], dtypes: DTypes) -> Rehearsal | None:
        """PyTorch's own run of a call; None where its inputs' numbers are not known."""
        given = [_numbers_of(x) for x in operands]
        if any(x is None for x in given):
            return None
        tensors = [
            _beside(torch.from_numpy(np.array(x)).to(getattr(torch, d)), self.source)
            for x, d in zip(given, dtypes, strict=True)
        ]
        with EXPORTING, _modes(self.source, self):
            return Rehearsal.of(self.source, self._value_now, *inputs.arguments(tensors))

    def _value_now(self, name: str) -> torch.Tensor | None:
        """A parameter's or buffer's value in this call; None where it is not known, or complex."""
        source = self._sources(name)
        found = None if source is None or source.is_complex() else _numbers_of(self._held(name))
        return None if found is None or source is None else torch.from_numpy(np.array(found)).to(source.dtype)

    def _sources(self, name: str) -> torch.Tensor | None:
        """The source's parameter or buffer of a dotted name."""
        path, _, own = name.rpartition(".")
        part = self.source.get_submodule(path)
        return {**part._buffers, **part._parameters}[own]

    def _require_tied(self) -> None:
        """Raise TorchConversionError where one parameter of the source has become several here: graphs read one."""
        for names in self._tied:
            if len({id(self._held(name)) for name in names}) > 1:
                raise TorchConversionError(
                    f"from_torch: {' and '.join(names)} are one parameter in the PyTorch module, and several here: "
                    "assign the same one to all, or untie them in the module and convert it again"
                )

    def _held(self, name: str) -> Any:
        """The parameter or buffer of a dotted name: what is registered, whatever else has its name."""
        path, _, own = name.rpartition(".")
        return Module.__getattr__(self.get_submodule(path), own)

    def _known(
        self,
        modes: Modes,
        dtypes: DTypes,
        settings: SourceSettings,
        inputs: Inputs,
        shapes: Sequence[Shape],
        path: Path,
    ) -> ExportedGraph | None:
        for own_modes, own_inputs, own_dtypes, own_settings, graph in reversed(self._graphs):
            alike = (own_modes, own_dtypes, own_settings) == (modes, dtypes, settings)
            same = alike and own_inputs == inputs and is_prefix(path, graph.path)
            if same and graph.takes(shapes) and self._has_values(graph.decided):
                return graph
        return None

    def _has_values(self, decided: Mapping[str, torch.Tensor | None]) -> bool:
        """Whether buffers have these values now, by name."""
        for name, value in decided.items():
            now = self._value(name)
            if value is None or now is None or not torch.equal(now, value):
                return False
        return True

    def _value(self, name: str) -> torch.Tensor | None:
        """A buffer's value now, also while a program is traced; None where it is the program's own result."""
        held = self._held(name)
        source = self._sources(name)
        if not isinstance(held, Tensor) or source is None or source.is_complex():
            return None
        return torch.from_numpy(np.array(_host(held))).to(source.dtype)

    def _new(
        self,
        modes: Modes,
        dtypes: DTypes,
        settings: SourceSettings,
        inputs: Inputs,
        shapes: Sequence[Shape],
        operands: Sequence[Any],
        path: Path,
    ) -> ExportedGraph:
        samples = [torch.zeros(s, dtype=getattr(torch, d)) for s, d in zip(shapes, dtypes, strict=True)]
        samples = [_beside(x, self.source) for x in samples]
        make = partial(exported, self.source, inputs, samples, self.stays, self._value)
        decides = any(graph.path for *_, graph in self._graphs)
        with _modes(self.source, self), self._own_shapes():
            if decides:
                self._require_few_paths(modes, operands)
            if decides and (rehearsal := self._rehearsed(inputs, operands, dtypes)) is not None:
                graph = make(DecidingCall(path, rehearsal))
            else:
                try:
                    graph = make()
                except StandInError as error:
                    raise NoGraphError(f"{self.source_class}: {error}") from None
                except DecidedError as error:
                    if (rehearsal := self._rehearsed(inputs, operands, dtypes)) is None:
                        raise UnknownCallError(*error.args) from None
                    graph = make(DecidingCall(path, rehearsal))
        if unknown := graph.program.unknown():
            raise TorchConversionError(
                f"{self.source_class}: {len(unknown)} calls have no counterpart:\n  "
                + "\n  ".join(LeftCalls().add(unknown))
                + "\ngive them a handler (lamina.convert.torch.converts), leave the modules around them "
                "to PyTorch (exclude=), or write these otherwise"
            )  # fmt: skip
        self._mark(graph)
        self._graphs = [*self._graphs[-GRAPHS + 1 :], (modes, inputs, dtypes, settings, graph)]
        warn_of_many(sum(bool(own.path) for *_, own in self._graphs), f"from_torch: {self.source_class}")
        return graph

    @contextmanager
    def _own_shapes(self) -> Iterator[None]:
        """Within the block the source's buffers have the shapes that they have here: PyTorch's own calls may have
        replaced them."""
        before: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        for name, buffer in self.source.named_buffers():
            path, _, own = name.rpartition(".")
            shape = tuple(self._held(name).shape)
            if not buffer.is_complex() and shape != tuple(buffer.shape):
                table = self.source.get_submodule(path)._buffers
                before.append((table, own, buffer))
                table[own] = buffer.new_zeros(shape)
        try:
            yield
        finally:
            for table, own, buffer in before:
                table[own] = buffer

    def _require_few_paths(self, modes: Modes, operands: Sequence[Any]) -> None:
        """Raise NoGraphError where calls take too many paths through the code, and drop their graphs."""
        count = sum(bool(graph.path) and own == modes for own, *_, graph in self._graphs)
        if not self._code.is_another_path(count) or not self._may_run_code(operands):
            return
        self._graphs = [kept for kept in self._graphs if not (kept[0] == modes and kept[-1].path)]
        raise NoGraphError(
            f"{self.source_class}: its code decides by values of tensors, which took it on {count} paths by now"
        )

    def state(self, name: str) -> Any:
        """A parameter, with its PyTorch hooks applied, or a buffer, by its dotted name."""
        path, _, own = name.rpartition(".")
        value = self._held(name)
        source = self.source.get_submodule(path)._parameters.get(own)
        hooks = () if source is None else tuple((source._backward_hooks or {}).values())
        if not hooks:
            return value
        if self._hooks.get(name, ((), None))[0] != hooks:
            self._hooks[name] = hooks, hooked(hooks)
        return bind(self._hooks[name][1], value)[0]

    @property
    def report(self) -> ConversionReport:
        """How the network's graphs were converted."""
        return ConversionReport.of(self.source, [graph.program for *_, graph in self._graphs])

    def _mark(self, graph: ExportedGraph) -> None:
        """Norms keep their parameters in float32 under mixed precision, as those of `lamina.nn` do."""
        names = {
            n: key
            for n, (kind, key) in zip(graph.program.inputs, graph.sources, strict=True)
            if kind == "state"
        }
        for node in graph.program.graph_module.graph.nodes:
            if node.op == "call_function" and "_norm" in str(node.target):
                for given in (n for n in node.all_input_nodes if n.name in names):
                    self.get_submodule(names[given.name].rpartition(".")[0]).computes_in_master = True


def _require_apart(operands: Sequence[Any], written: Iterable[int]) -> None:
    """Raise TorchConversionError if a write of the graph to one input would be visible in another."""
    for number in written:
        for other, x in enumerate(operands):
            if other != number and _share_an_element(operands[number], x):
                raise TorchConversionError(
                    f"from_torch: forward writes into its input {number} {tuple(operands[number].shape)} in place, "
                    f"which shares memory with its input {other}: a graph takes its inputs as tensors of their own; "
                    "pass a copy of one"
                )


def _share_an_element(x: Any, y: Any) -> bool:
    """For traced values whether they are identical; on GPUs and within a trace whether the memory overlaps."""
    if x is y or not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.device != y.device:
        return x is y
    if x.device.kind == "cpu" and recorder() is None:
        return np.shares_memory(x.numpy(), y.numpy())
    begin, other = x.buffer.pointer, y.buffer.pointer
    return begin < other + y.nbytes and other < begin + x.nbytes


class _State(Mapping[str, Any]):
    """Parameters and buffers by dotted name, with their current values: tensors, or traced values in a trace."""

    def __init__(self, module: ConvertedModule) -> None:
        self._module = module

    def __getitem__(self, name: str) -> Any:
        return self._module.state(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._module.state_dict())

    def __len__(self) -> int:
        return len(self._module.state_dict())


def from_torch(
    module: torch.nn.Module,
    *args: Any,
    share: bool = True,
    example: Any = None,
    exclude: Exclude | None = None,
    fullgraph: bool = False,
) -> ConvertedModule:
    """A PyTorch module as a Lamina module: the same state_dict, the same inputs, Lamina's ops and gradients.

    args, example: inputs of a typical call; a graph is made for them immediately, others when the network is called
    otherwise. args are positional; example is one input, a tuple of positional ones (as torch.export's), or a mapping
    of named ones, also beside args. share: parameters and buffers share the module's memory, wherever it is, until a
    compiled step moves them into its own; else they are copies. exclude: modules for which it is true stay PyTorch's,
    including their submodules: each call of one is one op that PyTorch computes and differentiates (once); their
    parameters and buffers belong to the converted network like all others. fullgraph: raise TorchConversionError for
    code that no graph holds, or that takes another one in each call. By default it is run call by call, each call of
    a function of PyTorch computed at once by its op, with a warning: also in lamina.jit, train_step and a Predictor.

    Raises TorchConversionError for unsupported functions, with the function and the line that calls it; ValueError
    where exclude is true for the whole network. Source: torch.export's training IR; exclusion as in cudnn.torch's
    `cudnn.convert`.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: takes a torch.nn.Module, got {type(module).__name__}")
    _require_python(module)
    converted = ConvertedModule(module, share, staying(module, exclude), fullgraph)
    if args or example is not None:
        inputs, tensors = Inputs.of(*_called_with(args, example))
        try:
            converted.graph(inputs, [as_tensor(_plain(x)) for x in tensors])
        except NoGraphError as error:
            if fullgraph:
                raise
            converted._code.warn(error)
    return converted


def _require_python(module: torch.nn.Module) -> None:
    """Raise TorchConversionError if the module, or a part of it, has no Python code to export."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            whole = "" if part is module else f"the part {path!r} of {type(module).__name__}: "
            raise TorchConversionError(
                f"from_torch: {whole}{part.original_name} is scripted or traced (torch.jit), of which torch.export "
                "makes no graph: give the module that it was made of, or write it by torch.onnx.export and read that "
                "by from_onnx"
            )


def _called_with(args: tuple[Any, ...], example: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and named inputs. Raises TypeError where positional ones are given twice."""
    if example is None or isinstance(example, Mapping):
        return args, example or {}
    if args:
        raise TypeError(
            f"from_torch: {len(args)} positional inputs and example={type(example).__name__}: pass one"
        )
    return example if isinstance(example, tuple) else (example,), {}


def exported(
    module: torch.nn.Module,
    inputs: Inputs,
    tensors: list[Any],
    stays: tuple[str, ...] = (),
    values: Values | None = None,
    call: DecidingCall | None = None,
) -> ExportedGraph:
    """The graph of a module, with the parts left to PyTorch as single nodes. Raises TorchConversionError if there is
    none.

    values: of the buffers by which its code decides; by default the module's own. call: as in `export`.
    """
    with EXPORTING, standing(module, stays) as calls:
        graph = export(module, inputs, tensors, values, call)
    return mark(graph, calls)


def _adopted(p: torch.Tensor, adopted: dict[int, Any], share: bool) -> Any:
    """The Lamina tensor for a PyTorch one: the same one wherever the same one is owned."""
    if id(p) not in adopted:
        try:
            as_dtype(str(real_form(p.detach()).dtype).removeprefix("torch."))
        except DTypeError as error:
            raise TorchConversionError(f"from_torch: {tuple(p.shape)} {p.dtype}: {error}") from None
        own = as_tensor(_plain(p)) if share else tensor(as_tensor(_plain(p)))
        if isinstance(p, torch.nn.Parameter):
            own = FollowingParameter(own, p) if share else Parameter(own, p.requires_grad)
        adopted[id(p)] = own
    return adopted[id(p)]


def _plain(x: Any) -> Any:
    """An array with DLPack: PyTorch's tensors without their gradient."""
    return real_form(x.detach()) if isinstance(x, torch.Tensor) else x


def _host(x: Tensor) -> np.ndarray[Any, Any]:
    """A tensor's numbers, those of a half type that NumPy lacks as float32."""
    with recording(None):
        found: np.ndarray[Any, Any] = (x.cast(float32) if x.dtype is bfloat16 else x).numpy()
        return found


def _numbers_of(x: Any) -> np.ndarray[Any, Any] | None:
    """The numbers of an operand in this call; None where there is none, or they are not known."""
    if isinstance(x, Tensor) and recorder() is None:
        return _host(x)
    found = known(x)
    found = known_now(x) if found is None else found
    return found.astype(np.float32) if found is not None and x.dtype is bfloat16 else found


def _is_computed(operands: Iterable[Any]) -> bool:
    """Whether each operand has its numbers: nothing but a tape records the call."""
    by = recorder()
    return (by is None or not by.lasts) and all(known(x) is not None for x in operands)


class _GeneratorBefore:
    """The state of the generator from which a graph draws, to be drawn from again by another one."""

    def __init__(self) -> None:
        self._before = read(default_generator.state).clone()

    def restore(self) -> None:
        """As it was."""
        write(default_generator.state, self._before)


def _as_in(source: torch.nn.Module, dtype: DType) -> str:
    """The dtype of an input in PyTorch's graph: under mixed precision half types represent the parameters' own."""
    own = {str(p.dtype).removeprefix("torch.") for p in source.parameters() if p.is_floating_point()}
    halved = dtype.is_float and dtype.itemsize < 4 and "float32" in own and str(dtype) not in own
    return "float32" if halved else str(dtype)


def _beside(x: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    """The tensor on the module's device."""
    first = next(module.parameters(), None)
    return x if first is None else x.to(first.device)


@contextmanager
def _modes(source: torch.nn.Module, converted: Module) -> Iterator[None]:
    """Within the block each PyTorch module has the mode of its counterpart."""
    before = [(m, m.training) for m in source.modules()]
    for path, part in converted.named_modules():
        source.get_submodule(path).training = part.training
    try:
        yield
    finally:
        for m, mode in before:
            m.training = mode
