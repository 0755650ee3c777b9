"""Arguments are refused at the door: by kind, by word, by range."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, SupportsIndex, cast

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.ops.arguments import DTypeLike, checked, shown, whole, within
from lamina.spec import DTypeError, float32


@checked
def example(
    input: Any,
    dim: int | Sequence[int] | None = None,
    *,
    rate: float = 1.0,
    flag: bool = False,
    mode: Literal["a", "b"] = "a",
    dtype: DTypeLike = float32,
) -> Any:
    """What is called."""
    return dim, rate, flag, mode, dtype


def test_what_the_annotations_allow() -> None:
    assert example(object(), np.int64(2), rate=3, flag=np.True_, mode="b", dtype="int8")[:2] == (2, 3)
    assert example("anything", [0, 1])[0] == [0, 1]
    assert example.__doc__ == "What is called."
    assert example.__name__ == "example"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dim": True}, TypeError, "example: dim must be an int or a sequence of ints or None, got True"),
        ({"dim": "1"}, TypeError, "got '1'"),
        ({"dim": b"1"}, TypeError, "got b'1'"),
        ({"dim": 1.0}, TypeError, "got 1.0"),
        ({"dim": (0, None)}, TypeError, r"got \(0, None\)"),
        ({"dim": {0: 1}}, TypeError, "dim must be"),
        ({"rate": True}, TypeError, "rate must be a number, got True"),
        ({"rate": "x"}, TypeError, "rate must be a number"),
        ({"flag": 1}, TypeError, "flag must be True or False, got 1"),
        ({"mode": "c"}, ValueError, "mode must be one of 'a', 'b', got 'c'"),
        ({"mode": 3}, TypeError, "mode must be one of 'a', 'b', got 3"),
        ({"dtype": None}, DTypeError, "dtype must be a dtype, such as lamina.float32 or 'float32', got None"),
        ({"dtype": "float7"}, DTypeError, "got 'float7'"),
    ],
)
def test_what_they_do_not(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        example(0, **arguments)


def test_by_place_too() -> None:
    with pytest.raises(TypeError, match="example: dim must be an int"):
        example(0, "0")


def test_a_function_of_operands_alone_is_itself() -> None:
    def plain(input: Any, other: Any) -> Any:
        """No argument to check."""

    assert checked(plain) is plain


def test_whole_numbers_reach_from_the_least_to_the_most() -> None:
    for value in (3, 5, np.int64(4)):
        found = whole("topk", "k", value, 3, 5)
        assert found == value
        assert type(found) is int
    assert whole("topk", "k", 1 << 80) == 1 << 80
    with pytest.raises(ValueError, match="topk: k must be at least 3, got 2"):
        whole("topk", "k", 2, 3, 5)
    with pytest.raises(ValueError, match="topk: k must be at most 5, got 6"):
        whole("topk", "k", 6, 3, 5)
    for value in (3.0, True, "3", None):
        with pytest.raises(TypeError, match="topk: k must be an int, got"):
            whole("topk", "k", value, 0, 5)


def test_ranges() -> None:
    within("dropout", "p", 1.0, 0, 1)
    for value, low, high, text in (
        (2, 0, 1, r"p must be in \[0, 1\], got 2"),
        (float("nan"), 0, 1, "got nan"),
        (-1, 0, np.inf, "p must be >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=text):
            within("dropout", "p", value, low, high)
    with pytest.raises(ValueError, match="p must be > 0, got 0"):
        within("relu", "p", 0, 0, open=True)


def test_values_are_shown_on_one_short_line() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert shown(Odd()) == "a Odd"
    assert len(shown(np.zeros((100, 100)))) <= 80
    assert "\n" not in shown(np.eye(3))


class Measured(Protocol):
    """What has a length."""

    length: float


def test_attributes_of_a_protocol_may_come_from_anywhere() -> None:
    class Found:
        def __getattr__(self, name: str) -> float:
            if name != "length":
                raise AttributeError(name)
            return 2.0

    @checked
    def measure(x: Measured) -> float:
        return x.length

    assert measure(Found()) == 2.0
    with pytest.raises(TypeError, match="measure: x must be an object with length, got 3"):
        measure(cast(Any, 3))


def test_a_protocol_is_asked_once_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[type] = []

    class Numbered:
        def __init__(self, number: int) -> None:
            self.number = number

        def __index__(self) -> int:
            return self.number

    @checked
    def shaped(size: Sequence[SupportsIndex]) -> Any:
        """What is called."""
        return [int(s) for s in size]

    assert (
        SupportsIndex.__annotations__ == {}
    )  # Python writes an empty dict into the class, which is no method of it
    known = type(SupportsIndex).__instancecheck__

    def counted(cls: type, x: Any) -> bool:
        if cls is SupportsIndex:  # not the protocols that other threads ask about
            asked.append(type(x))
        return bool(known(cls, x))

    monkeypatch.setattr(type(SupportsIndex), "__instancecheck__", counted)
    for _ in range(3):
        assert shaped([2, Numbered(3)]) == [2, 3]
        with pytest.raises(TypeError, match="shaped: size must be .*, got"):
            shaped(["a"])  # type: ignore[list-item]
    assert asked.count(int) <= 1
    assert asked.count(Numbered) == 1
    assert asked.count(str) == 0 or asked.count(str) == 3  # what is refused is asked about each time


def test_numpys_names_of_axes_are_taken_as_torch_takes_them() -> None:
    x = lm.tensor([[1.0, 2, 3], [4, 5, 6]])
    assert x.sum(axis=0).tolist() == [5, 7, 9]
    assert x.mean(axis=1, keepdims=True).tolist() == [[2], [5]]
    assert lm.ops.max(x, axis=1).values.tolist() == [3, 6]
    assert lm.ops.cat([x, x], axis=1).shape == (2, 6)
    assert lm.jit(lambda x: x.softmax(axis=0).sum(axis=0))(x).shape == (3,)
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        x.sum(dim=0, axis=1)
    with pytest.raises(TypeError, match="sum: dim must be an int or a sequence of ints or None, got 'rows'"):
        x.sum(axis="rows")


def test_what_torch_takes_beside_is_answered() -> None:
    with pytest.raises(
        TypeError, match=r"zeros\(\) got an unexpected keyword argument 'requires_grad'; derivatives"
    ):
        lm.zeros(2, requires_grad=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'requires_grad'; derivatives are of functions' arguments"):
        lm.tensor([1.0], requires_grad=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'out'; no function writes over its arguments"):
        ops.sum(lm.zeros(2), out=lm.zeros(()))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="size_average.; it is reduction="):
        nn.MSELoss(size_average=False)  # type: ignore[call-arg]


class Whole(int):
    """A number of the user's own class."""


@pytest.mark.parametrize(
    "dim", [True, (1, True), [0, 1.0], 1.0, "1", (0, None), np.array(1), np.array([0.5])]
)
def test_what_equals_an_int_is_not_taken_for_one(dim: Any) -> None:
    """However often an int was: classes are looked at, not values."""
    for good in (1, (1, 1), [0, 1], Whole(1), (Whole(0), np.int64(1)), np.array([0, 1]), range(2), (), None):
        assert example(0, good)[0] is good
    with pytest.raises(TypeError):
        example(0, dim)
    with pytest.raises(TypeError):
        example(0, dim=dim)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: ops.sum(lm.ones(2), dimm=0),
            "sum.. got an unexpected keyword argument 'dimm'; did you mean 'dim'",
        ),
        (lambda: nn.Linear(4, 2, baias=False), "'baias'; did you mean 'bias'"),
        (lambda: optim.SGD(lr=0.1, momentm=0.9), "'momentm'; did you mean 'momentum'"),
        (lambda: nn.models.resnet18(weights="DEFAULT"), "'weights'; nothing is downloaded: .*load_weights"),
        (
            lambda: ops.cross_entropy(lm.ones(1, 2), lm.tensor([0]), weights=None),
            "'weights'; did you mean 'weight'",
        ),
        (lambda: ops.sum(lm.ones(2), colour=0), "unexpected keyword argument 'colour'$"),
    ],
)
def test_a_misspelt_name_is_answered_by_the_nearest(call: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        call()
