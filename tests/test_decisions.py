"""Nothing is decided by a string that is made for people, and the graph knows no backend."""

import ast
import re
from collections.abc import Iterable

import pytest

from lamina.backends.cuda import backend as cuda_backend
from lamina.ops.core import REGISTRY
from tests.helpers.planned import H200
from tests.helpers.sources import files, nodes, text

#: Methods of strings that ask a question.
ASKING = ("startswith", "endswith", "find", "index", "count", "partition", "rpartition")
#: Where the label is not a plan's: an enumeration that prints the names of its values.
ENUMERATIONS = ("c/_arguments.py", "c/_library.py")


def _is_label(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "label"


def _is_supports(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "supports"


def decisions(nodes: Iterable[ast.AST]) -> list[str]:
    """Comparisons of a label or of where a kernel comes from with something, and questions asked of a label."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(map(_is_label, sides)) or any(map(_is_supports, sides)):
                found.append(ast.unparse(node))
        asked = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if asked and asked.attr in ASKING and (_is_label(asked.value) or _is_supports(asked.value)):
            found.append(ast.unparse(asked) + "(" + ", ".join(map(ast.unparse, node.args)) + ")")
    return found


def test_no_decision_is_made_by_a_label() -> None:
    found = {path: decisions(nodes(path)) for path in files() if path not in ENUMERATIONS}
    assert {path: made for path, made in found.items() if made} == {}


@pytest.mark.parametrize(
    "source",
    [
        "plan.label == 'x'",
        "'x' in plan.label",
        "plan.label.endswith(' apart')",
        "backend.supports(Conv) == 'cudnn'",
        "backend.supports(Conv) in ('', 'numpy')",
    ],
)
def test_a_planted_decision_is_caught(source: str) -> None:
    assert decisions(ast.walk(ast.parse(source))) == [source]


def test_the_graph_has_no_word_of_a_library() -> None:
    """A device is of some kind ("cuda"); of what computes there the graph knows nothing."""
    words = re.compile(r"cudnn|cublas|onednn|dnnl|backends[./]cuda|backends[./]cpu", re.IGNORECASE)
    graph = [path for path in files() if path.startswith("graph/")]
    assert len(graph) > 50
    assert [(path, word) for path in graph for word in words.findall(text(path))] == []


def test_ops_of_a_backends_fusions_are_named_in_that_backend_alone() -> None:
    assert cuda_backend(H200).fusions()
    own = {op.__name__ for op in REGISTRY.values() if op.__module__.startswith("lamina.backends.")}
    assert {"ConvNorm", "NormPool", "JointAttention"} <= own
    for path in files():
        if not path.startswith("backends/"):
            words = set(re.findall(r"\w+", text(path)))
            assert words & own == set(), path
