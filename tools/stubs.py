"""Stubs of `lamina.ops` for type checkers and editors, generated from the signatures.

    python -m tools.stubs write     writes the .pyi of src/lamina/ops: __init__, operators, fft, linalg, special
    python -m tools.stubs check     fails if one of them does not match the signatures

An op takes tensors, arrays and traced values, and returns the same kind; it is on a floor that knows neither
`Tensor` nor `Value`. In the sources of the ops `Any` therefore stands for an operand, and for nothing else. Here each
such function becomes two overloads: tensors and arrays give a Tensor; with a traced Value among them, a Value.
"""

from __future__ import annotations

import ast
import builtins
import copy
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
OPS = SOURCE / "lamina/ops/__init__.py"
OPERATORS = SOURCE / "lamina/ops/operators.py"
#: Modules of functions beside them, as torch.fft.
BESIDE = ("fft", "linalg", "special")
HEADER = '''"""Generated from the signatures by `python -m tools.stubs write`; do not edit."""

# An overload for traced values also takes what the one before takes; which one holds is decided in this order.
# mypy: disable-error-code="overload-overlap, override, misc"
# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false

'''
#: The types that replace Any: of a given operand, and of the result.
TENSORS = ("TensorLike", "Tensor")
TRACED = ("Value | TensorLike", "Value")
METHODS = ("TensorLike", "Own")
IMPORTS = {
    "Tensor": "lamina.tensors",
    "TensorLike": "lamina.tensors",
    "Value": "lamina.graph.ir.graph",
    "overload": "typing",
}

Function = ast.FunctionDef


class Module:
    """A parsed source file: its functions by name, and the origins of the names that it uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = SOURCE / name.replace(".", "/")
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions: dict[str, list[Function]] = {}
        self.origin: dict[str, str] = {}
        self.there: dict[str, str] = {}  # names that differ in their module of origin
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                self.origin |= {(a.asname or a.name): node.module for a in node.names}
                self.there |= {a.asname: a.name for a in node.names if a.asname}
            elif isinstance(node, Function):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.origin |= {t.id: name for t in targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.ClassDef):
                self.origin[node.name] = name

    def signatures(self, name: str) -> list[Function]:
        """The overloads of a function, or its one signature."""
        found = self.functions[name]
        return [f for f in found if _is_overload(f)] or found


class Stub:
    """A stub under construction."""

    def __init__(self) -> None:
        self.imports: dict[tuple[str, str], None] = {}
        self.modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        """The source of a module, parsed once."""
        if name not in self.modules:
            self.modules[name] = Module(name)
        return self.modules[name]

    def find(self, module: str, name: str) -> tuple[Module, str]:
        """The module that defines a function, and its name there."""
        here = self.module(module)
        if name in here.functions:
            return here, name
        for node in here.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return self.find(module, ast.unparse(node.value))
        return self.find(here.origin[name], here.there.get(name, name))

    def typed(self, f: Function, name: str, home: Module, given: str, made: str) -> Function:
        """A renamed signature with the operands' types."""
        out = copy.deepcopy(f)
        out.name, out.body = name, [ast.Expr(ast.Constant(...))]
        out.decorator_list = [d for d in f.decorator_list if _is_property(d)]
        arguments = [*out.args.posonlyargs, *out.args.args, *out.args.kwonlyargs]
        for a in (*arguments, out.args.vararg, out.args.kwarg):
            if a is not None and a.annotation is not None:
                a.annotation = self.annotation(a.annotation, home, given)
        assert out.returns is not None, f"{home.name}.{name} has no result type"
        out.returns = self.annotation(out.returns, home, made)
        for a, default in _with_defaults(out.args):
            if ast.unparse(default) == "None" and "None" not in ast.unparse(a.annotation or default):
                a.annotation = ast.parse(f"{ast.unparse(a.annotation or default)} | None", mode="eval").body
        out.args.defaults = [_default(d) for d in out.args.defaults]
        out.args.kw_defaults = [None if d is None else _default(d) for d in out.args.kw_defaults]
        return out

    def annotation(self, node: ast.expr, home: Module, operand: str) -> ast.expr:
        """A type with Any replaced by the operand's; the names in it are imported."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        found = _Replace(operand).visit(copy.deepcopy(node))
        for name in {n.id for n in ast.walk(found) if isinstance(n, ast.Name)}:
            place = IMPORTS.get(name) or home.origin.get(name)
            if place is not None:
                self.imports[(place, name)] = None
        assert isinstance(found, ast.expr)
        return found

    def function(self, f: Function, name: str, home: Module, plain: tuple[str, str]) -> list[Function]:
        """The stubs of one signature: two if it takes and returns operands, and those of the call by name
        if sizes may be given one by one."""
        if _is_one_by_one(f):
            both = [x for way in (_plain(f), _by_name(f)) for x in self.function(way, name, home, plain)]
            return [x if _is_overload(x) else self._overload(x) for x in both]
        if not (_operands(f) and _makes(f)):
            one = self.typed(f, name, home, TRACED[0], plain[1])
            return [self._overload(one) if _is_overload(f) else one]
        # A lone operand is matched exactly, so that a union of both kinds gives a union.
        traced = ("Value", "Value") if _operands(f) == ["Any"] else TRACED
        both = [self.typed(f, name, home, *kind) for kind in (plain, traced)]
        return [self._overload(x) for x in both]

    def _overload(self, f: Function) -> Function:
        self.imports[("typing", "overload")] = None
        f.decorator_list.insert(0, ast.Name("overload"))
        return f

    def text(self, module: str, *lines: str) -> str:
        """The whole stub of a module."""
        places = sorted(x for x in self.imports if x[0] != module)
        return _formatted(
            "\n".join([HEADER, *(f"from {place} import {name}" for place, name in places), *lines])
        )


class _Replace(ast.NodeTransformer):
    """Replaces Any by the type of an operand."""

    def __init__(self, operand: str) -> None:
        self.operand = operand

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.operand, mode="eval").body if node.id == "Any" else node


class _Builtins(ast.NodeTransformer):
    """In a class with methods `float`, `int` and `bool`, the builtin types are qualified."""

    def __init__(self, hidden: Iterable[str]) -> None:
        self.hidden = frozenset(hidden)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(ast.Name("builtins"), node.id) if node.id in self.hidden else node


def _with_defaults(a: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    """The parameters that have a default, with it."""
    positional = [*a.posonlyargs, *a.args]
    yield from zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)
    yield from ((arg, d) for arg, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None)


def _default(node: ast.expr) -> ast.expr:
    """A plain default value as it is, else `...`."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return node if isinstance(inner, ast.Constant) else ast.Constant(...)


def _names(annotations: Iterable[ast.expr | None]) -> set[str]:
    return {n.id for a in annotations if a for n in ast.walk(a) if isinstance(n, ast.Name)}


def _operands(f: Function) -> list[str]:
    """The types of the parameters that take operands."""
    a = f.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    types = [x.annotation for x in every if x is not None and x.annotation is not None]
    return [ast.unparse(t) for t in types if "Any" in _names([t])]


def _is_property(decorator: ast.expr) -> bool:
    """Whether a decorator makes a function a property or its setter."""
    text = ast.unparse(decorator)
    return text == "property" or text.endswith(".setter")


def _is_overload(f: Function) -> bool:
    return any(ast.unparse(d) == "overload" for d in f.decorator_list)


def _is_one_by_one(f: Function) -> bool:
    return any(ast.unparse(d) == "one_by_one" for d in f.decorator_list)


def _plain(f: Function) -> Function:
    """A signature without its decorators."""
    out = copy.deepcopy(f)
    out.decorator_list = []
    return out


def _by_name(f: Function) -> Function:
    """A signature whose sizes (`*size`) are one sequence, given by name."""
    out = _plain(f)
    sizes = out.args.vararg
    assert sizes is not None, f"{f.name} takes nothing one by one"
    out.args.vararg = None
    out.args.kwonlyargs.insert(0, sizes)
    out.args.kw_defaults.insert(0, None)
    return out


def _makes(f: Function) -> bool:
    return "Any" in _names([f.returns])


def _formatted(text: str) -> str:
    """Sorted, folded, without unused imports."""
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.exists() else "ruff"
    for command in (["check", "--quiet", "--fix-only", "--select", "I,F401,F811,RUF022"], ["format"]):
        line = [ruff, *command, "--stdin-filename", str(OPS.with_name("stub.pyi")), "-"]
        text = subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _constant(tree: ast.Module, name: str) -> Any:
    """The value of a module's constant."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def _listed(tree: ast.Module, name: str) -> tuple[str, ...]:
    """The strings that a module's constant lists."""
    return tuple(_constant(tree, name))


def _all_aliases() -> dict[str, str]:
    found: dict[str, str] = _constant(Module("lamina.ops.names").tree, "ALIASES")
    return found


def _others(there: Collection[str], suffix: str = "") -> list[ast.stmt]:
    """The aliases (`ALIASES`) of the functions present, as assignments."""
    found = [(f"{other}{suffix}", f"{name}{suffix}") for other, name in _all_aliases().items()]
    return [ast.parse(f"{other} = {name}").body[0] for other, name in found if name in there]


def ops_stub() -> str:
    """`lamina/ops/__init__.pyi`."""
    stub, package = Stub(), Module("lamina.ops")
    names = _listed(package.tree, "__all__")
    others = _others(names)
    lines = [f"__all__ = {[*names, *_all_aliases()]!r}"]
    for name in names:
        home, original = stub.find("lamina.ops", name)
        for f in home.signatures(original):
            lines += [ast.unparse(x) for x in stub.function(f, name, home, TENSORS)]
    lines += ["ALIASES: dict[str, str]", *(ast.unparse(x) for x in others)]
    return stub.text("lamina.ops", "from lamina.ops import core as core, primitives as primitives", *lines)


def module_stub(name: str) -> str:
    """`lamina/ops/linalg.pyi` and the like: public functions, and the types of their results."""
    full = f"lamina.ops.{name}"
    stub, home = Stub(), Module(full)
    types = [n for n in home.tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    names = _listed(home.tree, "__all__")
    lines = [f"__all__ = {list(names)!r}", "from typing import Generic, Literal, NamedTuple, TypeVar"]
    lines += [*_aliases(home), *(ast.unparse(n) for n in types)]
    for function in dict.fromkeys((*names, *(n for n in home.functions if not n.startswith("_")))):
        if function not in {n.name for n in types}:
            place, original = stub.find(full, function)
            for f in place.signatures(original):
                lines += [ast.unparse(x) for x in stub.function(f, function, place, TENSORS)]
    return stub.text(full, *lines)


def operators_stub() -> str:
    """`lamina/ops/operators.pyi`: the classes with the methods of their tables."""
    stub, home = Stub(), Module("lamina.ops.operators")
    operators, in_place = (n for n in home.tree.body if isinstance(n, ast.ClassDef))
    bodies = [_class_body(stub, home, operators), _writers(stub, home, in_place)]
    names = [{f.name for f in body} for body in bodies]
    hidden = (names[0] | names[1]) & set(dir(builtins))
    others = [_others(names[0]), _others(names[1], "_")]
    heads = [ast.unparse(n) for n in home.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    heads += _aliases(home)
    for source, body, assigned in zip((operators, in_place), bodies, others, strict=True):
        for f in body:
            _Builtins(hidden).visit(f)
        cls = ast.ClassDef(source.name, source.bases, [], [*body, *assigned], [])
        heads.append(ast.unparse(ast.fix_missing_locations(cls)))
    return stub.text("lamina.ops.operators", "import builtins", *heads)


def _class_body(stub: Stub, home: Module, source: ast.ClassDef) -> list[Function]:
    """The methods of `Operators`: those written out, and the functions that are methods too."""
    written = [n for n in source.body if isinstance(n, Function)]
    body = [x for f in written for x in stub.function(f, f.name, home, METHODS)]
    for name in (*_listed(home.tree, "METHODS"), *_listed(home.tree, "OWN_METHODS")):
        place, original = stub.find("lamina.ops", name)
        for f in place.signatures(original):
            body += stub.function(_method(f), name, place, METHODS)
    return body


def _writers(stub: Stub, home: Module, source: ast.ClassDef) -> list[Function]:
    """The methods of `InPlace`: for any arguments they return the operand itself."""
    kinds = (TRACED[0], METHODS[1])
    body = [stub.typed(n, n.name, home, *kinds) for n in source.body if isinstance(n, Function)]
    for name in _listed(home.tree, "IN_PLACE"):
        place, original = stub.find("lamina.ops", name)
        (signature,) = place.signatures(original)
        body.append(stub.typed(_method(signature), f"{name}_", place, *kinds))
    return body


def _method(f: Function) -> Function:
    """A function as a method: the first parameter is the operand itself."""
    out = copy.deepcopy(f)
    first = out.args.args[0]
    first.arg, first.annotation = "self", None
    return out


def _aliases(home: Module) -> Iterator[str]:
    """The type variables and aliases that a module defines."""
    for node in home.tree.body:
        text = ast.unparse(node)
        if (
            "TypeVar(" in text
            or "= Literal[" in text
            or (isinstance(node, ast.AnnAssign) and "TypeAlias" in text)
        ):
            yield text


STUBS: dict[Path, Callable[[], str]] = {
    OPS.with_suffix(".pyi"): ops_stub,
    OPERATORS.with_suffix(".pyi"): operators_stub,
    **{OPS.with_name(f"{name}.pyi"): partial(module_stub, name) for name in BESIDE},
}


def main(argv: Sequence[str]) -> int:
    """Write the stubs, or report which of them are out of date."""
    stale = [p for p, make in STUBS.items() if not p.exists() or p.read_text(encoding="utf-8") != make()]
    for path in stale:
        if argv == ["write"]:
            path.write_text(STUBS[path](), encoding="utf-8")
        else:
            print(f"{path.relative_to(SOURCE.parent)} is out of date: run python -m tools.stubs write")
    return int(bool(stale) and argv != ["write"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
