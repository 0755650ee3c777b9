"""torch.func's transformations within networks: calls of whole batches, and of derivatives, take their place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "B027")]


def ensemble() -> tuple[Any, Any]:
    """Three networks as one, whose parameters lie in one tensor each."""
    import torch
    from torch.func import functional_call, stack_module_state, vmap

    def one() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    stacked, _ = stack_module_state([one() for _ in range(3)])
    plan = [one().to("meta")]

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.ParameterDict({k.replace(".", "_"): v.detach() for k, v in stacked.items()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def each(own: Any, x: torch.Tensor) -> torch.Tensor:
                return functional_call(plan[0], {k.replace("_", "."): v for k, v in own.items()}, (x,))

            return vmap(each, in_dims=(0, None))(dict(self.own), x)

    return Net(), torch.randn(5, 3)


def sample_by_sample() -> tuple[Any, Any]:
    """A norm, attention, a convolution and a stopped gradient, written for one sample."""
    import torch
    from torch.func import vmap
    from torch.nn import functional

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
            self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def one(v: torch.Tensor) -> torch.Tensor:
                q = self.line(self.norm(v))
                kept = q * q.detach() + torch.where(v.sum() > 0, q, -q)
                return kept + (q @ v.mT).softmax(-1) @ v + functional.gelu(self.conv(q.mT)).mT

            return vmap(one)(x) * 2

    return Net(), torch.randn(2, 5, 4)


def forces() -> tuple[Any, Any]:
    """The gradient of an energy of convolutions."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = torch.nn.Sequential(
                torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.GroupNorm(2, 4), torch.nn.SiLU(),
                torch.nn.ConvTranspose2d(4, 2, 3, stride=2), torch.nn.Softplus(),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> Any:
            return torch.func.grad(lambda v: self.energy(v).sum())(x), self.energy(x).mean()

    return Net(), torch.randn(2, 1, 6, 6)


def jacobians() -> tuple[Any, Any]:
    """Of each sample, and second derivatives."""
    import torch
    from torch.func import hessian, jacrev, vmap

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))

        def forward(self, x: torch.Tensor) -> Any:
            jacobian = vmap(jacrev(self.own))(x)
            return torch.linalg.slogdet(jacobian + 3 * torch.eye(3))[1], vmap(hessian(self.own))(x)

    return Net(), torch.randn(4, 3)


def backwards() -> tuple[Any, Any]:
    """A Jacobian of one vector, whose levels are entered one after the other."""
    import torch
    from torch.func import grad_and_value, jacrev

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return jacrev(lambda x: self.own(x).tanh())(x[0]), grad_and_value(
                lambda x: self.own(x).sin().sum()
            )(x)

    return Net(), torch.randn(2, 3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by jvp of PyTorch
@pytest.mark.parametrize(
    "make", [ensemble, sample_by_sample, forces, jacobians, backwards], ids=lambda f: f.__name__
)
def test_compiled(make: Callable[[], tuple[Any, Any]]) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    torch.manual_seed(0)
    net, x = make()
    found = []
    for own in (net, copy.deepcopy(net)):
        run = own if own is net else compiled(own)
        results = torch.utils._pytree.tree_leaves(run(x))
        sum((y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).mean() for y in results).backward()
        found.append([*results, *(p.grad for p in own.parameters())])
    for wanted, got in zip(*found, strict=True):
        assert (wanted is None) == (got is None)
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_run_so_leaves_no_level_behind() -> None:
    import torch
    from torch.fx import Graph, GraphModule

    from lamina.convert.torch.levels import flattened, levels

    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(2, 3)
    graph.call_function(torch._C._functorch._vmap_increment_nesting, (2, "error"))
    y = graph.call_function(torch._C._functorch._add_batch_dim, (x, 0, 1))
    z = graph.call_function(torch.reshape, (y, (7,)))
    graph.call_function(torch._C._functorch._vmap_decrement_nesting)
    z.meta["example_value"] = torch.ones(2, 7)
    graph.output(z)
    module = flattened(GraphModule(torch.nn.Module(), graph))
    assert torch._C._functorch.maybe_current_level() is None
    assert [len(stretch) for stretch in levels(module)] == [4]


def test_a_stretch_is_run_with_all_that_its_calls_are() -> None:
    """What the graph holds, modules, methods and functions; what stands outside stays as it was written."""
    import torch
    from torch._C import _functorch as functorch
    from torch.fx import Graph, GraphModule

    from lamina.convert.torch.levels import flattened, levels

    root = torch.nn.Module()
    root.register_buffer("scale", torch.tensor([2.0, 3.0, 4.0]))
    root.act = torch.nn.Tanh()
    given = torch.linspace(-1, 1, 6).reshape(2, 3)
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(functorch._vmap_increment_nesting, (2, "error"))
    each = graph.call_function(functorch._add_batch_dim, (x, 0, 1))
    scaled = graph.call_function(torch.mul, (each, graph.get_attr("scale")))
    total = graph.call_method("sum", (graph.call_module("act", (scaled,)),))
    y = graph.call_function(functorch._remove_batch_dim, (total, 1, 2, 0))
    graph.call_function(functorch._vmap_decrement_nesting)
    outside = graph.call_function(torch.relu, (y,))
    graph.output(outside)
    x.meta["example_value"] = given
    y.meta["example_value"] = outside.meta["example_value"] = torch.ones(2)
    module = flattened(GraphModule(root, graph))
    assert levels(module) == []
    assert [n.target for n in module.graph.nodes if n.op == "call_function"][-1] is torch.relu
    torch.testing.assert_close(module(given), (given * root.scale).tanh().sum(1).relu())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by jvp of PyTorch
@pytest.mark.parametrize(
    "make", [ensemble, sample_by_sample, forces, jacobians, backwards], ids=lambda f: f.__name__
)
def test_converted(make: Callable[[], tuple[Any, Any]]) -> None:
    """torch.export makes no graph of most of these: Dynamo does."""
    import torch

    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, x = make()
    found = check(net, from_torch(net, x, share=False), x)
    assert found.output < 1e-4, found
    assert found.gradient < 1e-3, found
    torch.vmap(lambda x: x + 1)(torch.ones(2))  # no level was left behind
    with torch.autograd.forward_ad.dual_level():
        torch.rand(2)
