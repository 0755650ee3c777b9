"""`lamina.ops` is functions; classes and the machinery of ops are found where the error says."""

import inspect

import pytest

import lamina as lm
from lamina import ops
from lamina.ops import core, primitives
from lamina.ops.names import ALIASES


def test_only_functions_are_exported() -> None:
    assert [name for name in ops.__all__ if not inspect.isfunction(getattr(ops, name))] == []
    assert sorted(set(ops.__all__)) == sorted(ops.__all__)
    assert [name for name in ops.__all__ if not getattr(ops, name).__doc__] == []


def test_primitives_exports_the_op_classes() -> None:
    families = [
        op_class for op_class in core.REGISTRY.values() if op_class.__module__.startswith("lamina.ops.")
    ]
    assert [
        op_class for op_class in families if getattr(primitives, op_class.__name__, None) is not op_class
    ] == []
    assert {name for name in primitives.__all__ if issubclass(getattr(primitives, name), core.Op)} <= {
        op_class.__name__ for op_class in families
    }
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = primitives.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Conv", "lamina.ops.primitives.Conv"), ("register_adopter", "lamina.ops.core"),
        ("svd", r"it is lamina\.linalg\.svd$"), ("expit", r"it is lamina\.special\.expit$"),
        ("view_as_complex", "it is a last axis of two: a complex number is one here"),
        ("tensor", r"it is lamina\.tensor$"),
    ],
)  # fmt: skip
def test_what_left_is_named_by_the_error(name: str, place: str) -> None:
    with pytest.raises(AttributeError, match=place):
        getattr(ops, name)
    assert not hasattr(ops, "nothing_of_this_name")


def test_other_names_are_the_same_function() -> None:
    assert [o for o, name in ALIASES.items() if getattr(ops, o) is not getattr(ops, name)] == []
    assert set(ALIASES) <= set(ops.__all__)
    with pytest.raises(
        AttributeError, match=r"has no 'relu_': functions write over nothing; x = ops.relu\(x, …\)"
    ):
        _ = ops.relu_  # type: ignore[attr-defined]


@pytest.mark.torch
def test_other_names_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    named = {*dir(torch), *dir(torch.nn.functional)}
    assert [o for o, name in ALIASES.items() if not {o, name} <= named] == []
    ours, theirs = dir(lm.Tensor), dir(torch.Tensor)
    wanted = [f"{o}{end}" for o in ALIASES for end in ("", "_")]
    assert [n for n in wanted if (n in ours) != (n in theirs)] == []
