"""Names whose module is imported at first use, and what is said of names that are elsewhere."""

import sys
import types
from typing import Any

import pytest

import lamina as lm
from lamina import nn
from lamina._lazy import lazy, listing


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    found: Any = types.ModuleType("a_package")
    found.__getattr__ = lazy("a_package", {"sqrt": "math"}, instead={"old": "it is new"}, elsewhere="string")
    monkeypatch.setitem(sys.modules, "a_package", found)
    return found


def test_a_name_is_taken_from_its_module_once(package: Any) -> None:
    assert package.sqrt(9.0) == 3.0
    assert "sqrt" in vars(package)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("old", "module 'a_package' has no attribute 'old'; it is new$"),
        ("Template", "has no attribute 'Template'; it is string.Template$"),
        ("nothing", "has no attribute 'nothing'$"),
        ("_re", "has no attribute '_re'$"),
    ],
)
def test_what_is_elsewhere_is_named(package: Any, name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=text):
        getattr(package, name)


def test_torchs_names_are_led_to_ours() -> None:
    for home, name, text in (
        (lm, "einsum", "it is lamina.ops.einsum"),
        (lm, "no_grad", "lamina.stop_gradient"),
        (lm, "save", "lamina.save_weights"),
        (nn, "functional", "those of lamina.ops"),
        (nn, "einsum", "it is lamina.ops.einsum"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(home, name)


def test_a_traceback_can_find_what_is_meant() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = lm.nn.Conv2D
    assert (caught.value.name, caught.value.obj) == ("Conv2D", lm.nn)
    assert "Conv2d" in dir(caught.value.obj)


def test_dir_shows_the_public_names() -> None:
    assert listing(("b", "a"))() == ["a", "b"]
