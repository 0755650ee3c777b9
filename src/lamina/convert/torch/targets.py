"""The call targets of torch.fx nodes: the function's name, its argument names, and its memory behavior.

A name is PyTorch's own, "conv2d" for torch.conv2d, torch.nn.functional.conv2d and torch.ops.aten.conv2d.default
alike; in-place functions have a trailing underscore.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from lamina import ops
from lamina.convert.torch.cells import Cell
from lamina.ops.names import ALIASES

Schema: TypeAlias = torch._C.FunctionSchema
#: Other names of functions, and their names here: the aliases that PyTorch documents, and the exporter's own names.
SYNONYMS = ALIASES | {
    "true_divide": "div", "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor",
    "__iand__": "bitwise_and_", "__ior__": "bitwise_or_", "__ixor__": "bitwise_xor_",
    "__ilshift__": "bitwise_left_shift_", "__irshift__": "bitwise_right_shift_",
    "swapdims": "transpose", "special_expit": "sigmoid", "special_gammaln": "lgamma", "log_sigmoid": "logsigmoid",
    "linalg_matmul": "matmul", "linalg_cross": "cross", "linalg_diagonal": "diagonal", "fake_quantize": "quantize",
    "_efficientzerotensor": "zeros",
}  # fmt: skip
#: NumPy's argument names, which PyTorch's built-in functions accept for their own.
NUMPYS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}
#: Namespaces that prefix the names of built-in functions.
PREFIXES = ("special_", "fft_")
#: The arguments of functions that are written in C, and have no overloads.
PYTHON = {"getitem": ("input", "key"), "setitem": ("input", "key", "value"), "getattr": ("input", "attribute"),
          "__getitem__": ("input", "key"), "__setitem__": ("input", "key", "value"), "tensor": ("data",),
          "as_tensor": ("data",), "new_tensor": ("input", "data"), "type": ("input", "dtype"), "Tensor": ("data",),
          "_get_data_attr": ("input",)}  # fmt: skip


def name_of(node: Node) -> str:
    """The name of a node's function, without place, overload and namespace: "add_" for aten.add_.Tensor."""
    name = own_name(node)
    in_place = name.endswith("_") and not name.endswith("__")
    stem = name[:-1] if in_place else name
    stem = SYNONYMS.get(stem, stem)
    for prefix in PREFIXES:
        stem = stem.removeprefix(prefix)
    return stem + "_" * in_place


def own_name(node: Node) -> str:
    """PyTorch's own name of it."""
    target: Any = node.target
    if isinstance(target, str):
        return target
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", None) or getattr(packet, "_name", None) or type(target).__name__)


def full_name(node: Node) -> str:
    """Its display name: "aten.add_.Tensor", "torch.nn.functional.relu", "Tensor.view"."""
    target: Any = node.target
    if isinstance(target, str):
        return f"Tensor.{target}" if node.op == "call_method" else target
    if isinstance(target, torch._ops.OperatorBase):
        return str(target)
    module = getattr(target, "__module__", None) or ("torch" if is_torch(target) else "")
    return f"{module}.{own_name(node)}".lstrip(".")


def is_torch(target: Any) -> bool:
    """Whether a function is one of PyTorch's on tensors."""
    if isinstance(target, (str, torch._ops.OperatorBase)):
        return True
    place = getattr(target, "__module__", None) or ""
    return place.partition(".")[0] == "torch" or isinstance(
        getattr(target, "__self__", None), type(torch._C._VariableFunctions)
    )


def namespace(target: Any) -> str:
    """The library in which an operator was registered, "aten" for PyTorch's own; "" if it is not an operator."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.namespace)
    is_packet = isinstance(target, torch._ops.OpOverloadPacket)
    return str(target._qualified_op_name).partition("::")[0] if is_packet else ""


def is_functional(node: Node) -> bool:
    """Whether a node calls a function of torch.nn.functional."""
    return getattr(node.target, "__module__", "") == "torch.nn.functional" or _is_nn(node.target)


@cache
def _nn_builtins() -> frozenset[int]:
    return frozenset(id(v) for v in vars(torch._C._nn).values())


def _is_nn(target: Any) -> bool:
    return id(target) in _nn_builtins()


def written_operator(target: Any) -> Callable[..., Any] | None:
    """operator.add for operator.iadd; None if it is not an in-place operator of Python."""
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is not target or not name.startswith("i"):
        return None
    plain: Callable[..., Any] | None = getattr(operator, name[1:], getattr(operator, name[1:] + "_", None))
    return plain


def is_view(node: Node) -> bool:
    """Whether the result shares its memory with the first argument: by the example values, else by the schema."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return False
    seen, origin = example(node), example(source)
    if isinstance(origin, torch.Tensor) and seen is not None:
        parts = seen if isinstance(seen, (tuple, list)) else (seen,)
        tensors = [x for x in parts if isinstance(x, torch.Tensor)]
        return bool(tensors) and all(_storage(x) == _storage(origin) for x in tensors)
    return any(_says_view(s) for s in schemas(node))


def example(node: Node) -> Any:
    """PyTorch's example value of the result, or several; None if there is none."""
    found = node.meta.get("example_value")
    return node.meta.get("val") if found is None else found


def _storage(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def turns(node: Node) -> bool:
    """Whether a node changes its argument's shape in place, keeping the memory (unsqueeze_, transpose_):
    an in-place function whose out-of-place form returns a view.
    """
    name = own_name(node)
    stem = name.removesuffix("_")
    return name.endswith("_") and not name.endswith("__") and any(map(_says_view, _schemas(stem)))


def _says_view(schema: Schema) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def schemas(node: Node) -> Sequence[Schema]:
    """The schema of the overload that a node calls; for torch's functions and methods those of all overloads."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return (target._schema,)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return [getattr(target, overload)._schema for overload in target.overloads()]
    return _schemas(own_name(node)) if is_torch(target) else ()


@cache
def _schemas(name: str) -> tuple[Schema, ...]:
    found: tuple[Schema, ...] = tuple(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))
    return found


def named(node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the function's parameter names; "self" is "input".

    Overloads and Python functions provide their own names; of built-in functions the overload with matching types is
    used.
    Raises TypeError if no overload matches.
    """
    if own_name(node) in PYTHON:
        return dict(zip(PYTHON[own_name(node)], args, strict=False)) | dict(kwargs)
    if (signature := _python_signature(node.target)) is not None:
        kinds = [p.kind for p in signature.parameters.values()]
        handed_on = Parameter.VAR_KEYWORD in kinds  # (*args, **kwargs): another function has the names
        if kinds[:1] == [Parameter.VAR_POSITIONAL] and not handed_on and name_of(node) in ops.__all__:
            return {next(iter(signature.parameters)): args, **kwargs}
        if Parameter.VAR_POSITIONAL in kinds:
            return dict(zip(_own_names(name_of(node)), args, strict=False)) | dict(kwargs)
        bound = signature.bind(*args, **kwargs)
        flat = dict(bound.arguments)
        for p in signature.parameters.values():
            if p.kind is p.VAR_KEYWORD:
                flat |= flat.pop(p.name, {})
        return flat
    if not (found := schemas(node)):
        return dict(zip(_own_names(""), args, strict=False)) | dict(kwargs)
    fits = [(cost, n, f) for n, s in enumerate(found) for cost, f in _fits(s, args, kwargs)]
    if not fits:
        given = ", ".join([*(type(a).__name__ for a in args), *kwargs])
        raise TypeError(f"{full_name(node)}: no overload takes ({given})")
    return min(fits, key=lambda f: f[:2])[2]


def defaults(node: Node, given: int) -> dict[str, Any]:
    """Default values of an alias' remaining parameters: those of the function it stands for may differ."""
    if own_name(node).removesuffix("_") not in SYNONYMS:
        return {}
    known = [a for s in schemas(node)[:1] for a in s.arguments[given:] if a.has_default_value()]
    return {spelled(a.name): a.default_value for a in known if a.default_value is not None}


def _own_names(name: str) -> Iterator[str]:
    """The parameter names of the function of lamina.ops; numbers if there is none."""
    for place in (ops, ops.special):
        if name in place.__all__:
            yield from inspect.signature(getattr(place, name)).parameters
            return
    yield from map(str, itertools.count())


def _python_signature(target: Any) -> inspect.Signature | None:
    if isinstance(target, (str, torch._ops.OperatorBase)) or not inspect.isfunction(target):
        return None
    # F.max_pool2d and its variants choose between two functions by a flag: their own signature is (*args, **kwargs).
    chosen = torch._jit_internal.boolean_dispatched.get(target)
    return inspect.signature(chosen["if_true"] if chosen else target)


def _fits(
    schema: Schema, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(the penalty of conversions, the arguments by name) if the arguments match the schema."""
    parameters = schema.arguments
    placed = [p for p in parameters if not p.kwarg_only]
    args = _gathered(placed, args)
    if len(args) > len(placed):
        return
    found = {spelled(p.name): a for p, a in zip(placed, args, strict=False)}
    types = {spelled(p.name): str(p.real_type) for p in parameters}
    found |= {name if (name := spelled(k)) in types else NUMPYS.get(k, k): v for k, v in kwargs.items()}
    missing = [p for p in parameters if not p.has_default_value() and spelled(p.name) not in found]
    if missing or any(k not in types for k in found):
        return
    costs = [_cost(types[k], v) for k, v in found.items()]
    if all(c is not None for c in costs):
        yield sum(c or 0 for c in costs), found


def spelled(name: str) -> str:
    """The name of an argument in a handler."""
    return "input" if name == "self" else name


def _gathered(placed: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
    """x.view(2, 3): sizes passed one by one are one argument."""
    if len(args) <= len(placed):
        return args
    first = len(placed) - 1
    rest = args[first:]
    whole = placed and str(placed[-1].type) == "List[int]" and all(map(_is_whole, rest))
    return [*args[:first], list(rest)] if whole else args


def _is_whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda v: isinstance(v, Cell),
    "int": lambda v: isinstance(v, (int, torch.dtype)) and not isinstance(v, bool),
    "ScalarType": lambda v: isinstance(v, torch.dtype),
    "Layout": lambda v: isinstance(v, torch.layout),
    "MemoryFormat": lambda v: isinstance(v, torch.memory_format),
    "SymInt": _is_whole,
    "float": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, bool),
    "number": lambda v: isinstance(v, (bool, int, float)),
    "str": lambda v: isinstance(v, str),
    "Device": lambda v: isinstance(v, (str, int, torch.device)),
    "Generator": lambda v: isinstance(v, torch.Generator),
}  # fmt: skip


def _cost(kind: str, value: Any) -> int | None:
    """0 if a value has a schema's type, more if PyTorch converts it, None if it does not match."""
    if kind.startswith("Optional["):
        return 0 if value is None else _cost(kind[9:-1], value)
    if kind.startswith("List["):
        if _is_whole(value) and kind == "List[int]":
            return 2
        if not isinstance(value, (tuple, list)):
            return None
        costs = [_cost(kind[5:-1], v) for v in value]
        return None if any(c is None for c in costs) else sum(c or 0 for c in costs)
    if kind not in _KINDS:
        return None
    if kind == "Tensor" and _KINDS["number"](value):  # wrapped by PyTorch's dispatcher
        return 3
    if kind == "float" and isinstance(value, bool):
        return 1  # a number there: pad(…, value=True)
    if kind == "number" and isinstance(value, Cell):  # PyTorch reads the number of a tensor of no axes
        return 10
    return 0 if _KINDS[kind](value) else None
