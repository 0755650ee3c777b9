"""Networks as users write them: hooks, functions of F, in-place writes, views, einops, tied weights, control flow,
functions with a gradient of their own, parametrized weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100", "B027")]

PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {}


def program(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    PROGRAMS[make.__name__] = make
    return make


@program
def hooks_that_change_what_layers_give() -> tuple[Any, ...]:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    net[0].register_forward_hook(lambda module, inputs, output: output * 2 + inputs[0].mean())
    net[2].register_forward_pre_hook(lambda module, inputs: (inputs[0].clamp(max=1.0),))
    return net, torch.randn(4, 6)


@program
def functions_alone() -> tuple[Any, ...]:
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.2)
            self.w2 = nn.Parameter(torch.randn(5, 8 * 4))
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            x = F.conv2d(x, self.w1, stride=2, padding=1) * self.scale[:, None, None]
            x = F.max_pool2d(F.leaky_relu(x, 0.1), 2)
            x = F.adaptive_avg_pool2d(F.gelu(x), 2)
            return F.log_softmax(F.linear(x.flatten(1), F.normalize(self.w2, dim=1)), dim=-1)

    return Net(), torch.randn(2, 3, 12, 12)


@program
def writes_in_place() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            y = self.a(x)
            y += x
            y.mul_(0.5).relu_()
            y = y * 1
            y[:, :2] = self.b(x)[:, 2:4]
            y[y > 1] = 1.0
            z = torch.zeros_like(y)
            for i in range(3):
                z[:, i] = y[:, -1 - i] * i
            return z.add_(y, alpha=2)

    return Net(), torch.randn(5, 6)


@program
def views_that_share_memory() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Any) -> Any:
            y = self.qkv(x)
            q, k, v = y.view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
            scores = (q @ k.transpose(-2, -1) / 2).masked_fill(~mask, float("-inf"))
            out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
            view = out.view(-1, 8)
            view[0].zero_()
            return out + x

    return Net(), torch.randn(3, 5, 8)


@program
def einops_and_einsum() -> tuple[Any, ...]:
    import torch
    from einops import rearrange, reduce, repeat
    from einops.layers.torch import Rearrange
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Sequential(
                Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 8)
            )
            self.token = nn.Parameter(torch.randn(1, 1, 8))

        def forward(self, x: Any) -> Any:
            x = self.patches(x)
            x = torch.cat([repeat(self.token, "1 1 d -> b 1 d", b=x.shape[0]), x], 1)
            heads = rearrange(x, "b n (h d) -> b h n d", h=2)
            scores = torch.einsum("bhid,bhjd->bhij", heads, heads).softmax(-1)
            y = rearrange(torch.einsum("bhij,bhjd->bhid", scores, heads), "b h n d -> b n (h d)")
            return reduce(y, "b n d -> b d", "mean")

    return Net(), torch.randn(2, 3, 8, 8)


@program
def tied_weights() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6)
            self.rnn = nn.GRU(6, 6, batch_first=True)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.rnn(self.table(ids))[0])

    return Net(), torch.randint(0, 11, (3, 5))


@program
def control_flow_on_shapes() -> tuple[Any, ...]:
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv1d(4, 4, 3) for _ in range(3))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                if x.shape[-1] < 8:
                    x = F.pad(x, (0, 8 - x.shape[-1]))
                x = torch.relu(layer(x))
                if x.shape[1] % 2 == 0:
                    a, b = x.chunk(2, dim=1)
                    x = torch.cat((b, a), 1)
            return x.mean(-1) if x.ndim == 3 else x

    return Net(), torch.randn(2, 4, 9)


@program
def statistics_and_buffers() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("offset", torch.arange(6.0), persistent=False)

        def forward(self, x: Any) -> Any:
            if self.training:
                with torch.no_grad():
                    self.seen += 1
                    self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.norm(x) + self.offset - self.mean

    return Net(), torch.randn(8, 6)


@program
def nested_inputs_and_outputs() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Bilinear(4, 4, 3), nn.LayerNorm(3)

        def forward(self, pair: Any, scale: float, more: Any) -> Any:
            y = self.b(self.a(pair[0], pair["1"] if isinstance(pair, dict) else pair[1])) * scale
            return {"y": y, "both": (y + more["z"], [y.argmax(-1)]), "n": 3}

    return Net(), (torch.randn(2, 4), torch.randn(2, 4)), 0.5, {"z": torch.randn(3)}


@program
def checkpoints_and_no_grad() -> tuple[Any, ...]:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x: Any) -> Any:
            y = checkpoint(self.a, x, use_reentrant=False)
            with torch.no_grad():
                norm = y.norm()
            return self.b(y / norm) * y.detach() + torch.where(y > 0, y, torch.zeros(()))

    return Net(), torch.randn(3, 5)


@program
def gradients_of_their_own() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, step: float) -> Any:
            ctx.save_for_backward(x)
            return (x / step).round() * step

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grads[0] * (x.abs() < 1), None

    rounded = Round.apply

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x: Any) -> Any:
            return self.b(rounded(self.a(x) * 3, 0.25))

    return Net(), torch.randn(4, 5)


@program
def weights_made_of_parameters() -> tuple[Any, ...]:
    import torch
    from torch import nn
    from torch.nn.utils import parametrizations

    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 6)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(6, 4)),
    ), torch.randn(3, 5)


@program
def statistics_written_by_out() -> tuple[Any, ...]:
    import torch
    from torch import nn

    return nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), torch.randn(4, 6)


@program
def grids_of_coordinates() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> Any:
            height, width = x.shape[1:3]
            axes = (torch.linspace(-1, 1, n) for n in (height, width))
            grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
            far = torch.cat([grid[..., :1], torch.Tensor([1e10]).expand(height, width, 1)], -1)
            places = grid[None].expand(x.shape[0], -1, -1, -1)
            return self.line(torch.cat([x, places], -1)).type(x.dtype), far.amax().expand(2)

    return Net(), torch.randn(2, 3, 5, 1)


@program
def shapes_changed_in_place_and_data() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 4)
            self.register_buffer("kept", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.line(x).clone()
            y.unsqueeze_(0)
            y.squeeze_(0).transpose_(0, 1)
            y[1].mul_(2)
            part = y[:2]
            part.unsqueeze_(-1)
            part.add_(1)
            self.kept.data.mul_(0.5)
            return y * self.kept[:, None] + x.data.t()

    return Net(), torch.randn(3, 4)


@program
def gradients_at_bounds() -> tuple[Any, ...]:
    """Where a number is at the bound of a range (quantized weights mostly are), the gradient is PyTorch's."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 4, bias=False)
            with torch.no_grad():
                self.line.weight.copy_(torch.tensor([[1.0, -1, 0, 0.5]] * 4))

        def forward(self, x: torch.Tensor) -> Any:
            w = self.line.weight
            one = torch.ones(())
            found = [w.clamp(-1, 1), w.clamp(min=0), w.clamp(-one, one), F.hardtanh(w), torch.fmax(w, one)]
            found += [torch.maximum(w, one), torch.xlogy(w, one * 2), torch.fmin(w, -one), F.relu6(w)]
            return [
                self.line(x),
                *(k * (i + 1) for i, k in enumerate(found)),
                (w[:, :1] * 0).std(),
                *torch.std_mean(w, 0),
            ]

    return Net(), torch.randn(3, 4)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_results_gradients_and_state_are_those_of_torch(name: str, mode: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, *inputs = PROGRAMS[name]()
    net.train(mode == "train")
    converted = from_torch(net, *inputs, share=False)
    assert list(converted.state_dict()) == list(net.state_dict())
    found = check(net, converted, *inputs)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    assert max(found.state.values(), default=0.0) < 1e-5, found


#: Programs whose graphs say something else to Dynamo than to torch.export.
COMPILED = (
    statistics_written_by_out, grids_of_coordinates, shapes_changed_in_place_and_data, gradients_at_bounds,
)  # fmt: skip


@pytest.mark.parametrize("make", COMPILED, ids=lambda make: make.__name__)
def test_compiled_results_gradients_and_state_are_those_of_torch(make: Callable[[], tuple[Any, ...]]) -> None:
    import torch
    from torch.utils import _pytree as pytree

    from tests.helpers.torch_training import compiled

    found = []
    for run in (lambda net: net, compiled):
        torch.manual_seed(0)
        net, *inputs = make()
        results = [y for y in pytree.tree_leaves(run(net)(*inputs)) if isinstance(y, torch.Tensor)]
        sum(y.sum() for y in results if y.requires_grad).backward()
        found.append([*results, *net.buffers(), *(p.grad for p in net.parameters())])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted)
