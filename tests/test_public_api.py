"""Every public name is there and documented, and `import lamina` is cheap."""

import importlib
import inspect
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import lamina
from tools import stubs

PACKAGES = [
    "",
    "data",
    "graph",
    "nn",
    "nn.init",
    "ops",
    "optim",
    "optim.schedule",
    "runtime",
    "spec",
    "train",
]
HEAVY = (
    "sklearn",
    "rich",
    "cuda",
    "torch",
    "scipy",
    "pandas",
    "asyncio",
    "multiprocessing",
    "http",
    "sqlite3",
)
HEAVY += (
    "lamina.cli",
    "lamina.convert.",
    "lamina.c.",
    "lamina.cudnn",
    "lamina.onednn",
    "lamina.backends.cuda",
    "lamina.backends.cpu",
)

#: More modules than `import lamina` may bring beyond those of `import numpy`, and than using every public name may,
#: the standard library's included.
MODULES, ALL_MODULES = 6, 412

PROBE = """
import sys
import numpy
before = set(sys.modules)
import lamina
imported = set(sys.modules) - before
for name in lamina.__all__:
    name == "fit" or getattr(lamina, name)
print(" ".join(m for m in sys.modules if m.startswith({heavy!r})))
maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
print(" ".join(name for name in ("libcuda.so", "libcudnn", "libdnnl", "libcudart") if name in maps))
print(" ".join(sorted(set(sys.modules) - before)))
print(" ".join(sorted(imported)))
"""


def module(name: str) -> types.ModuleType:
    return importlib.import_module(f"lamina.{name}" if name else "lamina")


def public(name: str) -> list[tuple[str, Any]]:
    place = module(name)
    names = getattr(place, "__all__", None) or [
        n
        for n, value in vars(place).items()
        if not n.startswith("_") and getattr(value, "__module__", "") == place.__name__
    ]
    return [(n, getattr(place, n)) for n in names]


def test_import_is_cheap_and_opens_no_library() -> None:
    """Counted in modules, which is the same on a busy machine."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=HEAVY)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(lamina.__file__).parent.parent)},
    )
    heavy, opened, loaded, imported = done.stdout.split("\n")[:4]
    assert heavy == ""
    assert opened == ""
    assert len(imported.split()) < MODULES, imported
    assert len(loaded.split()) < ALL_MODULES, loaded


def test_the_public_list_is_whole() -> None:
    assert len(set(lamina.__all__)) == len(lamina.__all__)
    for name in (
        "ops",
        "nn",
        "optim",
        "data",
        "train_step",
        "fit",
        "evaluate",
        "tensor",
        "compile",
        "policy",
    ):
        assert name in lamina.__all__
    assert lamina.__version__.count(".") == 2


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_resolves_and_is_documented(package: str) -> None:
    assert module(package).__doc__
    for name, value in public(package):
        if callable(value) and not isinstance(value, types.GenericAlias):
            assert inspect.getdoc(value), f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", ["data", "nn", "optim", "train"])
def test_public_methods_are_documented(package: str) -> None:
    for name, value in public(package):
        if inspect.isclass(value):
            own = {n: m for n, m in vars(value).items() if not n.startswith("_") and inspect.isfunction(m)}
            for method, function in own.items():
                assert inspect.getdoc(function), f"{package}.{name}.{method} has no docstring"


def test_unknown_names_are_attribute_errors() -> None:
    for package in ("", "data", "train"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module(package).nothing


def test_lazy_names_are_kept() -> None:
    assert lamina.fit is lamina.train.fit
    assert "fit" in vars(lamina)


@pytest.mark.parametrize("path", stubs.STUBS, ids=lambda path: path.name)
def test_the_stubs_are_what_the_signatures_say(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == stubs.STUBS[path](), "run python -m tools.stubs write"


def test_dtypes_have_the_names_of_torch() -> None:
    pairs = {
        "bool": "bool_",
        "double": "float64",
        "float": "float32",
        "half": "float16",
        "int": "int32",
        "long": "int64",
    }
    for other, name in (pairs | {"short": "int16"}).items():
        assert getattr(lamina, other) is getattr(lamina, name)
        assert other not in lamina.__all__
    for name, text in (
        ("channels_last", "leave memory_format out"),
        ("set_float32_matmul_precision", r"lamina\.policy\(tf32=True\)"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(lamina, name)
