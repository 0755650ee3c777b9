"""`OnnxModule`: a model as a network, whose tensors are parameters, buffers or constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from lamina import ops
from lamina.convert.onnx.analysis import beside_statistics, decisive, statistics
from lamina.convert.onnx.graph import OnnxGraph
from lamina.convert.onnx.node import Mode, OnnxError, OnnxTexts, is_text
from lamina.convert.onnx.proto import RENAMED, External, dtype_of, external_bytes
from lamina.convert.onnx.reading import Source, read_model
from lamina.convert.onnx.untying import untie
from lamina.convert.onnx.wider import WIDER
from lamina.nn.mixed_precision import in_compute_type
from lamina.nn.module import Module
from lamina.nn.parameter import Parameter, read, write
from lamina.nn.random import default_generator
from lamina.ops.arguments import checked
from lamina.ops.core import recorder
from lamina.runtime import write_atomically
from lamina.spec import DType, Spec, bool_
from lamina.tensors import Tensor, tensor

#: Decides by name and values which tensors are trained.
Trainable = Callable[[str, Tensor], bool]
#: The maximum number of parts that a name is split into.
_MOST_PARTS = 32
#: A file holds less than this: the limit of the format.
_MOST_FILE_BYTES = (1 << 31) - 1


def from_onnx(
    source: Source,
    *,
    folder: str | Path | None = None,
    trainable: Trainable | None = None,
    train_batch_norm: bool = False,
) -> OnnxModule:
    """A model of ONNX (https://onnx.ai) as a network.

    source: a file's path, its bytes, or an onnx.ModelProto; opset 1 to 28. folder: the folder of external tensor
    data; by default the model file's. No file outside of it is read. trainable(name, tensor): which tensors are
    parameters; by default all of a floating point type with an axis.
    train_batch_norm: in training batch norms use the batch's statistics and update the running ones; by default they
        normalize by the running ones, as the file says.

    Raises OnnxError for a model that is invalid, is too new, or has operators without a handler; OSError for files
    that cannot be read.
    """
    model, external = read_model(source, folder)
    return OnnxModule(model, external, trainable=trainable, train_batch_norm=train_batch_norm)


class TensorFolder(Module):
    """Holds the tensors with a common name prefix: `layer1.0.conv.weight` is in layer1, in 0, in conv."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Information on a model's inputs and weights by their names; an object with slots, as it never changes:
    dicts of a module are compared in each call of a program.

    ranks: how many axes an input has, None if the model does not say. dtypes: those of the inputs, except floats
    of 32 bits and more, which a network may compute in another type. halves: the weights that the file has in a half
    type. places: the module of each weight and its name there.
    """

    ranks: dict[str, int | None]
    dtypes: dict[str, DType]
    halves: dict[str, DType] = field(default_factory=dict)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> _Facts:
        """For a graph whose weights are not yet assigned to modules."""
        dtypes = {v.name: dtype for v in graph.input if (dtype := _fixed_dtype(v)) is not None}
        return cls({v.name: _rank(v) for v in graph.input}, dtypes)


class OnnxModule(Module):
    """A network made of an ONNX model: net(x, y) or net(**{"input.1": x}), in the order of the model's inputs.

    Inputs that have an initializer as a default (`default_names`) may be left out; they come after the others, or by
    name. The default is a parameter like other weights; a given value replaces it in that call.

    Its output, or a tuple of them in the model's order (`output_names`). Parameters and running statistics have the
    model's names in `state_dict`; integers, scalars and values that determine shapes are constants. Every set of
    shapes has its own program when compiled (`Predictor`, `train_step`, `lamina.jit`): sizes that the model computes
    are constants there. On a GPU, compile it: constants lie on the CPU.

    In training, dropout is active; batch norms behave as `from_onnx` was told.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        external: External | None = None,
        *,
        trainable: Trainable | None = None,
        train_batch_norm: bool = False,
    ) -> None:
        untie(model)
        self._graph = OnnxGraph(model, external)
        if unknown := self._graph.unknown_operators():
            raise OnnxError(
                f"operators without a handler: {', '.join(unknown)}; register a function of ops for each by "
                "lamina.convert.onnx.node.converts, or export the model without them"
            )
        self._train_batch_norm = train_batch_norm
        self._facts = _Facts.of(model.graph)
        self._masters, self._model = set[str](), model  # names that weights do not take
        self._own_weights(model, trainable or _is_parameter)
        self._masters = beside_statistics(self._graph.body) & set(self._facts.places)
        self._model = self._without_weights(model, external)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs in the model's order."""
        return self._graph.inputs

    @property
    def default_names(self) -> tuple[str, ...]:
        """The optional inputs, in the model's order: an initializer of the same name is the default."""
        return self._graph.defaults

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs in the model's order."""
        return self._graph.outputs

    @property
    def names(self) -> dict[str, str]:
        """The model's name for each key of `state_dict`."""
        return {".".join(filter(None, place)): name for name, place in self._facts.places.items()}

    @property
    def model(self) -> onnx.ModelProto:
        """The model without the values of its weights; do not change it."""
        return self._model

    @property
    def train_batch_norm(self) -> bool:
        """Whether batch norms take the batch's statistics in training."""
        return self._train_batch_norm

    def input_specs(self, unknown: int = 1) -> tuple[Spec, ...]:
        """Shapes and dtypes of the inputs as the model declares them; `unknown` in place of sizes that it leaves
        open.

        Raises OnnxError for an input without a shape, such as a sequence.
        """
        found = {v.name: v.type.tensor_type for v in self._model.graph.input}
        if missing := [n for n in self.input_names if self._facts.ranks[n] is None]:
            raise OnnxError(f"the model does not say which shape its inputs {missing} have")
        return tuple(
            Spec(tuple(max(d.dim_value, 0) or unknown for d in kind.shape.dim), dtype_of(kind.elem_type))
            for kind in (found[n] for n in self.input_names)
        )

    def forward(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, or a tuple. The inputs may also be one dict by name, as a `Predictor` takes them.

        Raises OnnxError for inputs that are missing, unknown, given twice or of another rank.
        """
        names = self.input_names + self.default_names
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return self.forward(**inputs[0], **named)
        if len(inputs) > len(names):
            optional = f", of which {self.default_names} have defaults" if self.default_names else ""
            raise OnnxError(f"takes {len(names)} inputs {names}{optional}, got {len(inputs)}")
        given = dict(zip(names, inputs, strict=False))
        if twice := sorted(given.keys() & named.keys()):
            raise OnnxError(f"inputs {twice} are given by place and by name")
        given |= named
        for name, x in list(given.items()):
            rank = self._facts.ranks.get(name)
            if rank is None or isinstance(x, list):
                continue
            found = x if is_text(x) else ops.operand(x).spec
            if found.ndim != rank:
                raise OnnxError(f"input {name!r} has {rank} axes in the model, got {found}")
            if is_text(x):
                continue
            asked = self._facts.dtypes.get(name, found.dtype)  # the file's operators accept no other
            if found.dtype.is_float != asked.is_float or (found.dtype == bool_) != (asked == bool_):
                raise OnnxError(f"input {name!r} is of {asked} in the model, got {found}")
            if found.dtype != asked:
                given[name] = ops.cast(x, asked)
        mode = Mode(self.training, self._train_batch_norm, self._write, self._drop)
        outputs = self._graph(given, weights=self._standing(), mode=mode)
        listed = tuple(outputs[n] for n in self.output_names)
        return listed[0] if len(listed) == 1 else listed

    @checked
    def to_onnx(self, path: str | Path | None = None) -> onnx.ModelProto:
        """The model with the current weights; written to `path` if given.

        Raises OnnxError for 2 GiB or more, which the format cannot hold, OSError if it cannot be written.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        for proto in model.graph.initializer:
            if proto.name in self._facts.places:
                held = self._held(proto.name)
                values = held.to("cpu").numpy()
                proto.data_type, proto.raw_data = _code(held), values.tobytes()
        if path is not None:
            if model.ByteSize() > _MOST_FILE_BYTES:
                raise OnnxError(
                    f"{path}: the model has {model.ByteSize()} bytes; a file holds {_MOST_FILE_BYTES}"
                )
            write_atomically(path, [model.SerializeToString()])
        return model

    def masters(self) -> set[int]:
        """Statistics, and values combined with them, keep the master type in mixed precision."""
        return super().masters() | {id(self._held(name)) for name in self._masters}

    def extra_repr(self) -> str:
        """The inputs and outputs, and the number of nodes."""
        names = f"{', '.join(self.input_names)} -> {', '.join(self.output_names)}"
        return f"{names}; {len(self._graph.body.steps)} nodes"

    # ---- weights
    def _own_weights(self, model: onnx.ModelProto, trainable: Trainable) -> None:
        body, functions = self._graph.body, {k: f for k, (f, _) in self._graph.functions.items()}
        known = decisive(body, self.input_names, functions)
        kept = statistics(body, functions)
        sparse = {t.values.name for t in model.graph.sparse_initializer}  # their zeros are not trained
        for name, value in list(self._graph.initializers.items()):
            if name in known or name in sparse or isinstance(value, OnnxTexts):
                continue
            is_statistic = name in kept and value.dtype.is_float and value.ndim > 0
            if not (is_statistic or trainable(name, value)):
                continue
            value = tensor(value)  # in memory of its own: programs read arrays' memory anew in each call
            holder, attribute = self._place(name)
            if is_statistic:
                holder.register_buffer(attribute, value)
            else:
                holder.register_parameter(attribute, Parameter(value))
                if value.dtype.is_float and value.dtype.itemsize < 4:
                    self._facts.halves[name] = value.dtype
            del self._graph.initializers[name]

    def _place(self, name: str) -> tuple[Module, str]:
        """The module that holds a tensor of this name, and its name there: parts between dots are modules."""
        parts = [part or "_" for part in name.split(".")] if name.count(".") < _MOST_PARTS else []
        *above, last = parts or [name.replace(".", "_") or "_"]
        holder: Module = self
        path: list[str] = []
        for part in above:
            if part not in holder._modules:
                part = _free(holder, part)
                holder.add_module(part, TensorFolder())
            holder = holder._modules[part]
            path.append(part)
        attribute = _free(holder, last)
        self._facts.places[name] = ".".join(path), attribute
        return holder, attribute

    def _without_weights(self, model: onnx.ModelProto, external: External | None) -> onnx.ModelProto:
        """The model without the values of its weights; external tensors are included in it."""
        for proto in model.graph.initializer:
            if proto.name in self._facts.places:
                _clear(proto)
        functions = (t for f in model.functions for t in _attribute_tensors(f.node))
        for proto in (*_tensors_of(model.graph), *functions):
            if proto.data_location == onnx.TensorProto.EXTERNAL:
                held = WIDER.get(proto.data_type)
                data = bytes(external_bytes(proto, external, held.bits if held else None))
                _clear(proto)
                proto.raw_data = data
        found = onnx.ModelProto()  # a copy: messages release memory only as a whole
        found.ParseFromString(model.SerializeToString())
        return found

    def _held(self, name: str) -> Tensor:
        path, attribute = self._facts.places[name]
        holder = self.get_submodule(path)
        held = holder._parameters.get(attribute)
        return holder.get_buffer(attribute) if held is None else held

    def _standing(self) -> dict[str, Any]:
        """The value of each weight in this call: itself, or a traced value."""
        by, found = recorder(), {}
        for name in self._facts.places:
            held = self._held(name)
            value = in_compute_type(held, read(held), keeps=name in self._masters)
            half = self._facts.halves.get(name, value.dtype)  # the file's operators accept no other
            value = value if value.dtype == half else ops.cast(value, half)
            found[name] = by.read(value) if by is not None and isinstance(value, Tensor) else value
        return found

    def _write(self, name: str, value: Any) -> None:
        if name in self._facts.places:
            write(self._held(name), value)

    def _drop(self, x: Any, p: float) -> tuple[Any, Any]:
        state = read(default_generator.state)
        if isinstance(x, Tensor) and isinstance(state, Tensor):
            state = state.to(x.device)
        y, mask, after = ops.dropout(x, p, state=state)
        write(default_generator.state, after)
        return y, mask


def _is_parameter(name: str, value: Tensor) -> bool:
    """Floats with an axis; 8-bit floats are quantized numbers."""
    return value.dtype.is_float and value.dtype.itemsize > 1 and value.ndim > 0


def _free(holder: Module, name: str) -> str:
    """The name, with "_" appended if the module has another attribute of that name, or a setter (`training`)."""
    while (isinstance(held := getattr(type(holder), name, None), property) and held.fset is not None) or (
        name in holder.__dict__
        or name in holder._modules
        or name in holder._parameters
        or name in holder._buffers
    ):
        name += "_"
    return name


def _rank(info: onnx.ValueInfoProto) -> int | None:
    """The number of axes of an input; None if the model does not say."""
    kind = info.type.tensor_type
    return len(kind.shape.dim) if info.type.HasField("tensor_type") and kind.HasField("shape") else None


def _fixed_dtype(info: onnx.ValueInfoProto) -> DType | None:
    """The type of an input's elements; None for wider floats and if Lamina lacks the type."""
    try:
        found = dtype_of(info.type.tensor_type.elem_type)
    except OnnxError:
        return None
    return None if found.is_float and found.itemsize >= 4 else found


def _tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The tensors of a graph: its initializers, attributes of its nodes, those of its subgraphs."""
    yield from graph.initializer
    yield from _attribute_tensors(graph.node)


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for held in (a for node in nodes for a in node.attribute):
        if held.type == onnx.AttributeProto.TENSOR:
            yield held.t
        elif held.type == onnx.AttributeProto.GRAPH:
            yield from _tensors_of(held.g)


def _clear(proto: onnx.TensorProto) -> None:
    """Drop a tensor's values."""
    for name in ("float_data", "double_data", "int32_data", "int64_data", "raw_data", "external_data"):
        proto.ClearField(name)
    proto.ClearField("data_location")


def _code(held: Tensor) -> int:
    """ONNX's number of an element type."""
    names = {ours: theirs for theirs, ours in RENAMED.items()}
    return int(onnx.TensorProto.DataType.Value(names.get(held.dtype.name, held.dtype.name).upper()))
