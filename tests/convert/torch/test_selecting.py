"""What masks select, in graphs that are recorded: assignments, elementwise functions, sums and means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {}


def program(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    PROGRAMS[function.__name__] = function
    return function


@program
def what_one_mask_selects_is_assigned(y: Any, x: Any) -> Any:
    """As PointNet++ groups its points."""
    import torch

    nearest, best = torch.full_like(y, 1e10), torch.zeros_like(y, dtype=torch.int64)
    for i in range(3):
        distance = (y - x[:, i : i + 1]) ** 2
        mask = distance < nearest
        nearest[mask] = distance[mask]
        best[mask] = i
    best[best == 2] = best[:, :1].expand_as(best)[best == 2]
    return nearest, best.float()


@program
def elementwise_functions_of_selections(y: Any, x: Any) -> Any:
    """The logarithm is of what was selected alone, in the gradient as well."""
    import torch

    z, mask = torch.zeros_like(y), x > 0
    z[mask] = (x[mask].log() * y[mask].exp() + 2).clamp(max=1.5)
    z[~mask] = (-x[~mask] * 3).sqrt() - y[~mask]
    z[mask] += 1
    return z, (y * x)[mask].sum()


@program
def masks_that_are_made_again(y: Any, x: Any) -> Any:
    """The same steps of the same numbers select the same."""
    import torch

    z = y.sin()
    z[x > 0.25] = (y * x)[x > 0.25] + x[torch.gt(x, 0.25)]
    z = z.index_put(((x * 2).abs() < 0.5,), y[(x * 2).abs() < 0.5] * 3)
    return z, (x * y)[x > 0.25].sum()


@program
def rows_and_means(y: Any, x: Any) -> Any:
    import torch

    mask = x[:, 0] > 0
    z = torch.zeros_like(y)
    z[mask] = y[mask].tanh() * x.mean(0)
    return z, (y[mask] ** 2).mean(), y[x > 9].sum()


@program
def full_slices_behind_the_mask(y: Any, x: Any) -> Any:
    import torch

    mask = x[:, 0] > 0
    z = torch.zeros_like(y)
    z[mask, :] = y[mask, ...].tanh() * x.mean(0)
    z = z.index_put((mask,), y[mask, :].exp())
    return z, (y[mask, :] ** 2).mean()


def network(function: Callable[[Any, Any], Any]) -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.line(x), x)

    return Net()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_step_trains_as_pytorch(name: str) -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, x = network(PROGRAMS[name]), torch.randn(6, 4)
    converted = from_torch(net, x, share=False)
    found = check(net, converted, x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    step = lm.train_step(
        converted, lambda y, _: sum(lm.ops.mean(v) for v in y), lm.optim.SGD(lr=0.1), keep_grads=True
    )
    for _ in range(3):
        net.zero_grad()
        loss = sum(v.mean() for v in net(x))
        loss.backward()
        assert float(step(x.numpy())) == pytest.approx(loss.item(), rel=1e-4)
        for key, p in net.named_parameters():
            assert p.grad is not None
            np.testing.assert_allclose(step.grads[key].numpy(), p.grad.numpy(), rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_batch_size_selects_another_number(name: str) -> None:
    """The exporter bounds the number of selected elements, which the sizes of the inputs do not tell."""
    import torch

    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net = network(PROGRAMS[name])
    converted = from_torch(net, torch.randn(6, 4), share=False)
    for size in (9, 3):
        found = check(net, converted, torch.randn(size, 4))
        assert found.output < 1e-5, found
        assert found.gradient < 1e-4, found


def without_itself(y: Any, x: Any) -> Any:
    """As SimCLR: the similarities of each sample to all others, the positive ones first. y: [2n, 2n]."""
    import torch

    n = len(y) // 2
    same = torch.cat([torch.arange(n) for _ in range(2)])
    same = (same[None] == same[:, None]).float()
    others = ~torch.eye(2 * n, dtype=torch.bool)
    same, y = same[others].view(2 * n, -1), y[others].view(2 * n, -1)
    scores = torch.cat([y[same.bool()].view(2 * n, -1), y[~same.bool()].view(2 * n, -1)], 1)
    return torch.nn.functional.cross_entropy(scores, torch.zeros(2 * n, dtype=torch.int64))


def above_the_diagonal(y: Any, x: Any) -> Any:
    import torch

    upper = torch.ones(len(y), len(y)).triu(1) == 1
    return y.masked_select(upper).cumsum(0) + y[upper]


def of_a_list(y: Any, x: Any) -> Any:
    import torch

    return y[:, torch.tensor([True, False, True, True])].cumsum(1)


def each_second(y: Any, x: Any) -> Any:
    import torch

    even = torch.arange(y.shape[0]) % 2 == 0
    return y[torch.where(even)[0]].exp() + x[torch.nonzero(even, as_tuple=True)] + x[even.nonzero()[:, 0]]


@pytest.mark.parametrize("function", [without_itself, above_the_diagonal, of_a_list, each_second])
def test_masks_of_numbers_that_the_code_has_select_a_known_number(function: Any) -> None:
    """Compiled as well: sizes, ranges and literals are the same in each call, and so is what they select."""
    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    net, x = network(function), torch.linspace(-1, 1, 16).reshape(4, 4)
    converted = from_torch(net, x, share=False)
    found = check(net, converted, x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    compiled = lm.jit(lambda x: converted(x))
    np.testing.assert_allclose(compiled(x.numpy()).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def joined(y: Any, x: Any) -> Any:
    import torch

    return torch.cat([y[x > 0], x[0]]).mean()


def with_more_axes(y: Any, x: Any) -> Any:
    import torch

    return (y[x > 0] + torch.ones(2, 1, 1)).sum()


#: Where two masks are, they select as many of the numbers with which the network is recorded.
TAKEN: dict[str, Callable[[Any, Any], Any]] = {
    "sums in order": lambda y, x: y[x > 0].cumsum(0).sum(),
    "the selection": lambda y, x: y[x > 0],
    "part of another": lambda y, x: (y[x > 0] + x[y > 0][:1]).sum(),
    "sorted": lambda y, x: y[x > 0].sort().values.mean(),
    "joined with others": joined,
    "with more axes": with_more_axes,
    "with elements of its own order": lambda y, x: (y[x > 0.79] * x[x > 0.79].sort().values.flip(0)).sum(),
    "by another number": lambda y, x: (y[x > 0] + x[x > 0.01]).sum(),
    "by another comparison": lambda y, x: (y[x > 0] + x[x < 0]).sum(),
    "by another tensor": lambda y, x: (y[x > 0] + x[x.flip(0) > 0]).sum(),
    "written by another number": lambda y, x: (y * 1).index_put((x > 0.01,), x[x > 0]),
    "written by another comparison": lambda y, x: (y * 1).index_put_((x < 0,), x[x > 0]),
    "added where it was": lambda y, x: (y * 1).index_put((x > 0,), x[x > 0], accumulate=True),
    "a sum along an axis": lambda y, x: y[x[:, 0] > 0].sum(1).mean(),
    "its size": lambda y, x: y[x > 0].sum() / x[x > 0].shape[0],
}


@pytest.mark.parametrize("function", TAKEN.values(), ids=TAKEN)
def test_what_only_its_size_tells_takes_the_elements_of_the_call(function: Any) -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    net, x = network(function), torch.linspace(-1, 1, 24).reshape(6, 4)
    converted = from_torch(net, x)
    compiled = lm.jit(lambda x: converted(x))
    np.testing.assert_allclose(compiled(x.numpy()).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="shape of the result depends on the numbers in the mask"):
        lm.trace(lambda x: converted(x), lm.Spec((6, 4), lm.float32))


def test_selections_by_masks_that_are_given_and_computed_are_two() -> None:
    """A mask that is state of the network was made by no step that another's could be compared with."""
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.arange(24).reshape(6, 4) % 2 == 0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[self.kept] + x[x > 0]).sum()

    x = torch.linspace(-1, 1, 24).reshape(6, 4)
    converted = from_torch(Net(), x)
    compiled = lm.jit(lambda mask, x: lm.nn.functional_call(converted, {"kept": mask}, (x,)))
    mask = np.arange(24).reshape(6, 4) % 2 == 0
    np.testing.assert_allclose(compiled(mask, x.numpy()).numpy(), Net()(x).numpy(), atol=1e-6)


def test_a_mask_of_the_shape_of_an_input_selects_a_known_number() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)[torch.ones_like(x).triu(1) == 1].view(2, -1) * 2

    x = torch.linspace(-1, 1, 16).reshape(4, 4)
    converted, wanted = from_torch(Net(), x), Net()(x).numpy()
    for call in (converted, lm.jit(lambda x: converted(x)), lm.infer.Predictor(converted, device="cpu")):
        np.testing.assert_allclose(call(x.numpy()).numpy(), wanted, rtol=1e-6)


def test_edges_of_a_graph_without_loops_are_trained_on() -> None:
    """Edges that a mask keeps, a size that is the largest number of an input: each number has a program."""
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor, edges: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
            own = torch.arange(len(x))
            edges = torch.cat([edges[:, edges[0] != edges[1]], torch.stack([own, own])], 1)
            y = torch.zeros(len(x), 2).index_add(0, edges[1], self.linear(x)[edges[0]])
            return torch.zeros(int(group.max()) + 1, 2).index_add(0, group, y)

    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 3)
    step = lm.train_step(from_torch(net, share=False), lambda y, _: (y**2).mean(), lm.optim.SGD(lr=0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for edges, group in (
        ([[0, 1, 2, 3], [1, 1, 0, 3]], [0, 0, 1, 1]),
        ([[0, 1, 2, 3], [1, 1, 0, 2]], [0, 0, 1, 1]),
        ([[0, 1, 2, 3], [1, 1, 0, 3]], [0, 2, 1, 1]),
    ):
        given = x, torch.tensor(edges), torch.tensor(group)
        optimizer.zero_grad()
        loss = (net(*given) ** 2).mean()
        loss.backward()
        optimizer.step()
        assert abs(float(step(tuple(t.numpy() for t in given), None)) - float(loss.detach())) < 1e-6
