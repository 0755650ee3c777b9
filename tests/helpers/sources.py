"""The package's Python files, read and parsed once for all tests that inspect them."""

import ast
import gc
from functools import cache
from pathlib import Path

import lamina

PACKAGE = Path(lamina.__file__).parent


@cache
def files() -> tuple[str, ...]:
    """Their paths in the package, in order."""
    return tuple(sorted(file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")))


@cache
def text(path: str) -> str:
    """The text of a file."""
    return (PACKAGE / path).read_text(encoding="utf-8")


@cache
def tree(path: str) -> ast.Module:
    """The parsed file, which must not be modified. Parsed with the garbage collector off, as collections take
    four times as long as parsing."""
    gc.disable()
    try:
        return ast.parse(text(path))
    finally:
        gc.enable()


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """All nodes of a file, outer ones first."""
    return tuple(ast.walk(tree(path)))
