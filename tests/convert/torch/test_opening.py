"""Python functions that Dynamo takes as they are become the calls that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F100", "B027")]


def beside(model: Callable[..., Any], *inputs: Any) -> tuple[list[Any], Any]:
    """Compiled results and gradients of their sum of squares, checked against PyTorch's; what was left to PyTorch."""
    import torch
    from torch.utils import _pytree as pytree

    from lamina import convert
    from tests.helpers.torch_training import compiled

    found = []
    for run in (model, compiled(model)):
        given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        results = pytree.tree_leaves(run(*given))
        sum(y.square().sum() for y in results).backward()
        found.append([*results, *(x.grad for x in given)])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
    return found[1], convert.explain(compiled(model), *inputs)


@pytest.fixture
def closed() -> Any:
    """Makes a function that Dynamo does not look into."""
    import torch

    return torch.compiler.allow_in_graph


def test_einops_with_a_version_that_keeps_dynamo_out(closed: Any) -> None:
    import einops
    import torch

    rearrange, repeat, reduce = (closed(getattr(einops, n)) for n in ("rearrange", "repeat", "reduce"))
    weight = torch.randn(8, 6, requires_grad=True)

    def model(x: Any) -> Any:
        heads = rearrange(x, "b t (h d) -> b h t d", h=2)
        return rearrange(heads, "b h t d -> b t (h d)") @ weight + reduce(
            repeat(x, "b t d -> b t d n", n=3), "b t d n -> b t 1", "sum"
        )

    _, report = beside(model, torch.randn(2, 5, 8))
    assert not report.left


def test_several_results_numbers_and_names(closed: Any) -> None:
    import torch

    def parts(x: Any, *, scale: float, names: list[Any]) -> Any:
        low, high = x.chunk(2, dim=-1)
        return low * scale, torch.where(high > 0, high, torch.zeros_like(high)) + names[0] + torch.arange(3.0)

    inner = closed(parts)

    def model(x: Any, y: Any) -> Any:
        low, high = inner(x, scale=1.5, names=[y])
        return torch.tanh(low) @ high.transpose(0, 1)

    _, report = beside(model, torch.randn(4, 6), torch.randn(4, 3))
    assert not report.left


def test_what_is_written_to_arguments_and_results_is_seen(closed: Any) -> None:
    import torch

    @closed
    def grown(x: Any) -> Any:
        return x.add_(1.0).mul_(2.0)

    @closed
    def turned(x: Any) -> Any:
        return x.transpose(0, 1)

    def model(x: Any) -> Any:
        y = x * 3.0
        view = turned(y)
        view += 1.0
        grown(y)
        return y + x

    _, report = beside(model, torch.randn(3, 4))
    assert not report.left


def test_other_sizes(closed: Any) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    @closed
    def flat(x: Any) -> Any:
        return x.reshape(x.shape[0] * x.shape[1], -1).sum(0, keepdim=True)

    def model(x: Any) -> Any:
        return flat(x) * 2.0

    run = compiled(model, dynamic=True)
    for count in (2, 3, 5):
        x = torch.randn(count, 4, 3)
        torch.testing.assert_close(run(x), model(x))


def test_other_threads_keep_their_functions_with_own_gradients() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from lamina.convert.torch.opening import _only_known_gradients

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2.0

    x = torch.ones(3)
    with _only_known_gradients(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(Twice.apply, x).result(30).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(TypeError, match="gradient of its own"):
            Twice.apply(x)
    assert Twice.apply(x).tolist() == [2.0, 2.0, 2.0]
