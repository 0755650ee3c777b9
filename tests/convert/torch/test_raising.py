"""Branches that only raise by values: the graph is of the values that pass."""

import logging
import re
import warnings
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]
X, Y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 2, 1, 1])
LEFT_OUT = r"test_raising\.py:\d+: what is raised here for values of tensors is not checked"


def too_large(x: Any, y: Any) -> Any:
    if y is not None and y.max() >= 3:
        text = "too large"
        raise ValueError(text)
    return x + y[:, None]


def asserted(x: Any, y: Any) -> Any:
    assert (y >= 0).all(), "negative"
    return x * y[:, None]


def negated(x: Any, y: Any) -> Any:
    if not (
        torch.isfinite(x).all()
    ):  # fmt: skip
        raise ValueError("not finite")
    return x * 2


def both_ways(x: Any, y: Any) -> Any:
    if y.max() >= 3 or not (y > 0).all() or (x.numel() == 0 and not y.any()):
        raise ValueError("out of range")
    return x - 1


def one_of_several(x: Any, y: Any) -> Any:
    if any(part.isnan().any() for part in (x, x + 1)):
        raise ValueError("not a number")
    assert all(bool(part.isfinite().all()) for part in (x, x + 1))
    return x - 2


def otherwise(x: Any, y: Any) -> Any:
    if y.max() >= 3:
        raise ValueError("too large")
    else:
        x = x - 3
    if y.min() > 0:
        return x
    else:
        raise ValueError("too small")


def by_numbers(x: Any, y: Any) -> Any:
    if y.max().item() >= 3 or not (0 <= y.min().item() < 5):
        raise ValueError("out of range")
    assert torch.isfinite(x).all().item(), "not finite"
    if not (y > 0).all().item():
        raise ValueError("negative")
    return x + 4


def by_a_function(x: Any, y: Any) -> Any:
    torch._assert((y > 0).all(), "negative")
    return x + 5


def by_pythons_numbers(x: Any, y: Any) -> Any:
    limit = 3
    if int(y.max()) >= limit or float(x.abs().max()) > 1e6:
        raise ValueError("too large")
    if int(y.min()) + 1 > limit or abs(float(x.sum())) > 1e6 or float(x.norm()) < 1e-8:
        raise ValueError("out of range")
    if not (0 < y.max().item() + 1 < limit + 1):
        raise ValueError("out of range")
    assert int(y.sum()) == limit + 4, f"{int(y.sum())} in all"
    assert int(y.max()) in {2, 9}
    if int((y < 0).any()):
        raise ValueError("negative")
    return x + 6


def by_functions_of_tensors(x: Any, y: Any) -> Any:
    if not torch.allclose(x, x) or x.equal(x) is False:
        raise ValueError("not a number")
    assert not torch.is_nonzero(y.sum() < 0)
    return x + 7


def warned_of(x: Any, y: Any) -> Any:
    if y.max() > 100 or (y.float().std() < 1e-6 * y.max()).any():
        warnings.warn("nearly constant", stacklevel=2)
        logging.getLogger(__name__).warning("nearly constant")
    return x + 8


@pytest.mark.parametrize(
    "forward",
    [
        warned_of,
        too_large,
        asserted,
        negated,
        both_ways,
        one_of_several,
        otherwise,
        by_numbers,
        by_a_function,
        by_pythons_numbers,
        by_functions_of_tensors,
    ],
)
def test_a_branch_that_only_raises_is_left_out(forward: Any) -> None:
    class Checked(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return forward(x, y)

    net = Checked()
    with pytest.warns(UserWarning, match=LEFT_OUT):
        converted = convert.from_torch(net, X, Y)
    for found in converted(X, Y), lm.jit(converted)(X.numpy(), Y.numpy()):
        np.testing.assert_allclose(found.numpy(), net(X, Y).numpy(), atol=1e-6)


def decided(x: Any, y: Any) -> Any:
    if y.max() >= 3:
        x = x + 1
    return x


def warned_or_decided(x: Any, y: Any) -> Any:
    if y.max() >= 3:
        warnings.warn("too large", stacklevel=2)
    else:
        x = x + 1
    return x


def elsewhere(x: Any, y: Any) -> Any:
    def bad() -> bool:
        return bool(y.max() >= 3)

    if bad():
        raise ValueError("too large")
    return x


def caught(x: Any, y: Any) -> Any:
    try:
        if y.max() >= 3:
            raise ValueError("too large")
        x = x + 1
    except ValueError:
        x = x - 1
    return x


def read_otherwise(x: Any, y: Any) -> Any:
    n = y.max().item()
    if n >= 3:
        x = x + 1
    return x


def kept(x: Any, y: Any) -> Any:
    if (n := int(y.max())) >= 3:
        raise ValueError("too large")
    return x + n


def never_passing(x: Any, y: Any) -> Any:
    if int(y.max()) == int(y.max()):
        raise ValueError("always")
    return x


class Deciding(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        return self.function(x, y)


@pytest.mark.filterwarnings("ignore:too large")
@pytest.mark.parametrize("forward", [decided, warned_or_decided, elsewhere, caught, read_otherwise, kept])
def test_other_decisions_are_those_of_the_call(forward: Any) -> None:
    converted = convert.from_torch(Deciding(forward))
    for y in (Y, Y.clamp(max=1), Y):
        np.testing.assert_array_equal(converted(X, y).numpy(), forward(X, y).numpy())


@pytest.mark.filterwarnings("ignore:.*what is raised here:UserWarning")
def test_what_always_raises_is_raised() -> None:
    with pytest.raises(convert.TorchConversionError, match="ValueError: always"):
        convert.from_torch(Deciding(never_passing), fullgraph=True)(X, Y)
    with pytest.raises(ValueError, match="^always"):
        convert.from_torch(Deciding(never_passing))(X, Y)


def test_a_constant_decides() -> None:
    """Where a value is known, Python's own way is taken: nothing is left out, and no warning."""

    class Known(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.shape[0] > 9:
                raise ValueError("too many")
            return x + 1

    found = convert.from_torch(Known())(X)
    np.testing.assert_allclose(found.numpy(), X.numpy() + 1)
    with pytest.raises(Exception, match=re.escape("too many")):
        convert.from_torch(Known())(torch.zeros(10, 4))


def test_code_without_a_file_decides_even_where_its_caller_asserts() -> None:
    """Its lines are unknown, and those of the caller are others."""
    text = "def forward(self, x, y):\n    if y.max() >= 3:\n        x = x + 1\n    return x"
    made: dict[str, Any] = {}
    exec(text, made)
    net = type("Written", (torch.nn.Module,), {"forward": made["forward"]})()
    found = convert.from_torch(net)
    assert found is not None
    for y in (Y, Y + 3):
        assert np.array_equal(found(X, y).numpy(), (X + 1 if y.max() >= 3 else X).numpy())


def test_a_number_that_something_else_reads_is_none_that_passes() -> None:
    class Indexing(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            assert x[y.max().item()].shape[0] == 4
            return x + y[:, None]

    found = convert.from_torch(Indexing())(X, Y)
    np.testing.assert_allclose(found.numpy(), (X + Y[:, None]).numpy(), atol=1e-6)


def test_what_only_an_assertion_reads_needs_no_value_in_a_program() -> None:
    """`torch._check_tensor_all` of a tensor made of sizes, and of an argument."""

    class Checked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            sizes = torch.tensor([tuple(x.shape)])
            torch._check_tensor_all((sizes[:, 0] * sizes[:, 1]).sum() == x.numel())
            torch._check_tensor_all(x.abs() >= 0)
            return x * 2

    converted = convert.from_torch(Checked(), X)
    found = lm.jit(lambda x: converted(x))(X.numpy())
    np.testing.assert_allclose(found.numpy(), 2 * X.numpy())
