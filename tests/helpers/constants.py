"""Every named number of a module or class of the package: limits, sizes, codes of libraries.

    python -m tests.helpers.constants write       after one was changed on purpose: the difference is reviewed

Most are limits whose change by one no other test would notice, or codes that only a device's library reads.
The table contains values, not their source form; expressions with names of functions and of other constants are
left out.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.sources import files, tree

TABLE = Path(__file__).with_name("constants.json")
#: Generated from the headers of libraries.
GENERATED = {"c/cudnn.py", "c/dnnl.py", "c/errors.py"}
#: Functions permitted in an expression.
CALLS: dict[str, Any] = {
    "frozenset": frozenset,
    "float": float,
    "dict": dict,
    "ord": ord,
    "set": set,
    "tuple": tuple,
}


def table() -> dict[str, dict[str, str]]:
    """By file, except generated ones, and name ("Class.name" within a class): values with numbers, as text."""
    written = (file for file in files() if file not in GENERATED)
    return {file: held for file in written if (held := dict(_held(tree(file).body, "")))}


def _held(body: list[ast.stmt], start: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _held(node.body, f"{start}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if any(_is_number(n) for n in ast.walk(node.value)) and (text := _value(node.value)):
                yield start + ast.unparse(target), text


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _value(node: ast.expr) -> str:
    """The value of an expression of numbers, texts and containers; "" if it contains other names."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if not names <= CALLS.keys() or any(isinstance(n, ast.Lambda | ast.Attribute) for n in ast.walk(node)):
        return ""
    return _text(eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}}, dict(CALLS)))


def _text(value: Any) -> str:
    """As text, with sets in order."""
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    return repr(value)


def main(argv: list[str]) -> int:
    """The command line."""
    if argv != ["write"]:
        print(__doc__)
        return 2
    TABLE.write_text(json.dumps(table(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
