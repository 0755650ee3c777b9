"""One word, one thing: no class name twice, no module hidden by a function; `dir` shows the public names alone."""

import ast
import importlib
import pkgutil
import sys
import types
from collections import defaultdict
from itertools import combinations

import pytest

import lamina
from tests.helpers.sources import files, nodes

PUBLIC = (
    "",
    "cudnn",
    "cudnn.legacy",
    "data",
    "graph",
    "infer",
    "nn",
    "nn.init",
    "onednn",
    "ops",
    "optim",
    "optim.lr_scheduler",
    "optim.schedule",
    "runtime",
    "spec",
    "train",
)
#: Words of the bindings of cuDNN and oneDNN that another room uses, too, and memory's that is torch.nn's for a state.
#: The list may only shrink.
BINDINGS = {
    "BatchNorm",
    "Buffer",
    "CTCLoss",
    "Dropout",
    "Engine",
    "Graph",
    "Matmul",
    "RNN",
    "Reshape",
    "Slice",
    "Softmax",
    "Stream",
    "Tensor",
    "Transpose",
}


def classes() -> dict[str, list[str]]:
    """Every class of the package but for the C layer: name -> the files that define it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in files():
        if not path.startswith("c/"):
            for node in nodes(path):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(path)
    return found


def are_twins(a: str, b: str) -> bool:
    """An op and its layer or its transform of images, a scheduler and the callback that does the same, or an object
    of cuDNN's two wings.
    """
    if {a, b} == {"optim/lr_scheduler.py", "train/callbacks.py"}:
        return True
    one, other = sorted((a, b), key=lambda file: file.startswith("ops/"))
    if other.startswith("ops/") and one.startswith(("nn/", "data/transforms/")):
        return True
    both = a.startswith("cudnn/") and b.startswith("cudnn/")
    return both and a.startswith("cudnn/legacy/") != b.startswith("cudnn/legacy/")


def test_no_class_name_stands_for_two_things() -> None:
    twice = {
        n for n, files in classes().items() if not all(are_twins(a, b) for a, b in combinations(files, 2))
    }
    assert sorted(twice - BINDINGS) == []
    assert sorted(BINDINGS - twice) == [], "these are single by now: take them off the list"


def test_no_module_is_hidden() -> None:
    for found in pkgutil.walk_packages(lamina.__path__, "lamina."):
        if "__main__" not in found.name and ".c." not in found.name:
            try:
                importlib.import_module(found.name)
            except ImportError:
                continue  # needs an optional library
    loaded = [name for name in sys.modules if name.startswith("lamina.") and ".c." not in name]
    pairs = [(name, name.rpartition(".")) for name in loaded]
    pairs = [
        (name, parts) for name, parts in pairs if parts[0] in sys.modules
    ]  # of a package that came in whole
    hidden = [
        name
        for name, (parent, _, own) in pairs
        if not isinstance(getattr(sys.modules[parent], own, None), types.ModuleType)
    ]
    assert hidden == []


@pytest.mark.parametrize("package", PUBLIC)
def test_dir_shows_the_public_names_and_nothing_else(package: str) -> None:
    module = importlib.import_module(f"lamina.{package}" if package else "lamina")
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name, None) is not None, name
