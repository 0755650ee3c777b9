"""The floors of DESIGN.md hold: imports go downward only, and stand at the top of their file."""

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.helpers.sources import files, tree

FLOOR = {
    "_cached": 0, "_json": 0, "_lazy": 0, "_philox": 0, "_renamed": 0, "_tree": 0, "_version": 0, "c": 0,
    "runtime": 1, "spec": 1,
    "cudnn": 2, "onednn": 2, "ops": 2,
    "backends": 3, "replay": 3,
    "tensors": 4, "files": 4, "graph": 4,
    "nn": 5, "array_api": 5, "optim": 5, "data": 5, "distributed": 5,
    "infer": 6, "train": 6, "jitting": 6, "convert": 6, "simulate": 6, "cli": 6, "__main__": 7,
    "": 7,  # lamina itself: the public list
}  # fmt: skip
#: On one floor: backends say what they do as data that runs without them, files hold tensors, graphs run on tensors
#: and are kept in files, the command line runs programs.
SIDEWAYS = {
    ("backends", "replay"),
    ("files", "tensors"),
    ("graph", "tensors"),
    ("graph", "files"),
    ("train", "infer"),
    ("infer", "jitting"),
    ("cli", "train"),
    ("cli", "infer"),
    ("cli", "convert"),
    ("cli", "simulate"),
}
MACHINE = {"c", "runtime", "cudnn", "onednn"}
MATHS = {"spec", "ops"}
#: Backends that only `backends.get` may open from above floor 3, and that do not know each other.
PRIVATE = {"cuda", "cpu"}
#: Where a function may import: it opens a backend, or a public name at first use, or, once the machine is
#: known to have what they need, NVIDIA's optional modules.
SANCTIONED = {
    ("backends/__init__.py", "get"),
    ("backends/cuda/registry.py", "register_families"),
    ("_lazy.py", "getattr_"),
    ("c/_cudnn.py", "_pathfinder"),
    ("c/cublaslt.py", "_pathfinder"),
    ("runtime/_cuda.py", "_import_driver"),
    ("runtime/_cuda.py", "_import_core"),
    ("runtime/_cuda.py", "open_nvrtc"),
    ("runtime/_cuda.py", "header_options"),
}


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.stmt, str]]:
    """Every import statement with the full name it imports (one per name for `from lamina import a, b`)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node, "relative"
            elif node.module in ("lamina", "lamina.backends"):
                yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)
            else:
                yield node, node.module or ""


def owners(tree: ast.AST) -> dict[ast.AST, str]:
    """The innermost function around each node, "" around those that are in none."""
    found: dict[ast.AST, str] = {}
    left: list[tuple[ast.AST, str]] = [(tree, "")]
    while left:
        node, name = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        for inner in ast.iter_child_nodes(node):
            found[inner] = name
            left.append((inner, name))
    return found


def imports_by_name(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Calls of importlib.import_module and __import__."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__"):
                yield node


def violations(tree: ast.AST, path: str) -> list[str]:
    """What is wrong with a file of the package; `path` is relative to the package."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    here = "" if parts == ["__init__"] else parts[0]
    owner = owners(tree)
    found = []
    for call in imports_by_name(owner):
        if (path, owner[call]) not in SANCTIONED:
            found.append(f"{path}:{call.lineno}: imports by name in {owner[call] or 'the module'}")
    for node, name in imports(owner):
        where = f"{path}:{node.lineno}: {name}"
        if owner[node] and (path, owner[node]) not in SANCTIONED:
            found.append(f"{where} is imported inside a function")
        if name == "relative":
            found.append(f"{where} import; write the full name")
        if name.split(".")[0] == "lamina" and name != "lamina":
            found += [f"{where}: {reason}" for reason in wrong_direction(here, parts, name.split(".")[1:])]
    return found


def wrong_direction(here: str, parts: list[str], target: list[str]) -> Iterator[str]:
    """Reasons why a module in folder `here` must not import `target` (the name without "lamina")."""
    there = target[0] if target[0] in FLOOR else ""
    if there == here:
        if here == "backends" and len(target) > 1 and target[1] in PRIVATE and parts[1:2] != target[1:2]:
            yield f"backends.{target[1]} is private; use backends.get"
        return
    if FLOOR[there] > FLOOR[here]:
        yield f"{here or 'lamina'} (floor {FLOOR[here]}) must not import from floor {FLOOR[there]}"
    elif FLOOR[there] == FLOOR[here] and (here, there) not in SIDEWAYS:
        yield f"{here} and {there} stand on the same floor"
    if {here, there} & MACHINE and {here, there} & MATHS and {here, there} <= MACHINE | MATHS:
        yield f"{here} and {there} are in different pillars"
    if FLOOR[here] > 3 and there == "backends" and len(target) > 1 and target[1] in PRIVATE:
        yield f"above floor 3 nobody imports backends.{target[1]}; use backends.get"


def test_every_folder_has_a_floor() -> None:
    top = {f.removesuffix(".py").split("/")[0] for f in files()} - {"__init__", "__main__"}
    assert top <= set(FLOOR)


def test_imports_go_downward() -> None:
    assert [fault for path in files() for fault in violations(tree(path), path)] == []


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("ops/primitives/conv.py", "from lamina.graph import trace", "must not import from floor 4"),
        ("ops/primitives/conv.py", "from lamina import graph", "must not import from floor 4"),
        ("ops/primitives/conv.py", "import lamina.runtime", "different pillars"),
        ("cudnn/conv.py", "from lamina.spec import Spec", "different pillars"),
        ("cudnn/conv.py", "from lamina.onednn import engine", "same floor"),
        ("nn/conv.py", "from lamina.optim import SGD", "same floor"),
        ("tensors.py", "from lamina.graph import trace", "same floor"),
        ("graph/run/executable.py", "from lamina.backends.cuda import conv", "use backends.get"),
        ("graph/run/executable.py", "from lamina.backends import cpu", "use backends.get"),
        ("backends/cpu/conv.py", "from lamina.backends.cuda import conv", "use backends.get"),
        ("nn/conv.py", "def f():\n    from lamina import ops", "inside a function"),
        ("nn/conv.py", "def f():\n    import math", "inside a function"),
        ("nn/conv.py", "import importlib\ndef f():\n    importlib.import_module('x')", "by name in f"),
        ("nn/conv.py", "from . import linear", "full name"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_caught(path: str, source: str, reason: str) -> None:
    found = violations(ast.parse(source), path)
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "backends/cpu/conv.py",
            "from lamina.onednn import engine\nfrom lamina.ops import Conv\nimport numpy",
        ),
        ("graph/ir/graph.py", "from lamina.tensors import Tensor\nfrom lamina import ops"),
        ("graph/passes/manager.py", "from lamina.backends.reference import run_reference"),
        ("cli/train.py", "from lamina.train import fit\nfrom lamina import nn"),
        ("__init__.py", "from lamina.train import train_step"),
    ],
)
def test_downward_imports_pass(path: str, source: str) -> None:
    assert violations(ast.parse(source), path) == []


# ------------------------------------------------------------------------------------------------------- circles

#: Modules whose types name each other (a device makes streams and buffers, which know their device): they import each
#: other for type checkers alone. The list may only shrink.
MUTUAL_TYPES = {
    "lamina.runtime." + name for name in ("arena", "compute_device", "memory", "platforms", "stream")
}


def module_imports(path: str, modules: set[str], *, typing: bool) -> set[str]:
    """The modules of the package that a file imports at its top; typing: those under TYPE_CHECKING as well."""
    found = set()
    for node, lines in top_level(tree(path).body, typing):
        names = [a.name for a in lines]
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{n}" for n in names]
            found |= {n if n in modules else str(node.module) for n in names} & modules
        else:
            found |= set(names) & modules
    return found


def top_level(
    body: list[ast.stmt], typing: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, list[ast.alias]]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, node.names
        elif (
            isinstance(node, ast.If) and (typing or "TYPE_CHECKING" not in ast.dump(node.test))
        ) or isinstance(node, ast.Try):
            yield from top_level(node.body, typing)


def circles(edges: dict[str, set[str]]) -> set[str]:
    """The modules that reach themselves: what is left when those without anything left to import are taken away."""
    left = {name: set(needs) - {name} for name, needs in edges.items()}
    for direction in range(2):
        while free := {name for name, needs in left.items() if not needs & left.keys()}:
            left = {name: needs for name, needs in left.items() if name not in free}
        if direction == 0:  # what only leads into a circle goes by the same rule, turned around
            left = {name: {o for o, needs in left.items() if name in needs} for name in left}
    return set(left)


@pytest.mark.parametrize("typing", [False, True])
def test_no_circle_of_imports(typing: bool) -> None:
    names = {path: ("lamina/" + path).removesuffix(".py").removesuffix("/__init__") for path in files()}
    modules = {name.replace("/", "."): path for path, name in names.items()}
    edges = {name: module_imports(path, set(modules), typing=typing) for name, path in modules.items()}
    assert circles(edges) <= (MUTUAL_TYPES if typing else set())


def test_a_planted_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert circles(edges) == {"b", "c"}
