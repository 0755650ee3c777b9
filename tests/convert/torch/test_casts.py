"""Autocast as casts in the graph: the dtypes and numbers of PyTorch."""

import copy
import logging
import operator
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("B024"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    ),  # Dynamo looks at it
]


def seen(function: Callable[..., Any], device: str, half: Any, *dtypes: Any, sizes: Any = (8, 8)) -> Any:
    """The graph of a function with what PyTorch's fake tensors become in it, under autocast around the whole of it.

    No device is needed: fake tensors on a GPU pass through the dispatcher as those on a CPU do.
    """
    import torch
    from torch._subclasses import FakeTensorMode

    class Seeing(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            n.meta["example_value"] = super().run_node(n)
            return n.meta["example_value"]

    graph = torch.fx.Graph()
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    proxies = [torch.fx.Proxy(graph.placeholder(f"x{i}"), tracer) for i in range(len(dtypes))]
    graph.output(function(*proxies).node)
    module = torch.fx.GraphModule({}, graph)
    shapes = sizes if isinstance(sizes[0], tuple) else [sizes] * len(dtypes)
    with FakeTensorMode():
        given = [torch.empty(s, device=device, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
        with autocast(device, half):
            Seeing(module).run(*given)
    return module


class autocast:
    def __init__(self, device: str, half: Any) -> None:
        self.device, self.half = device, half

    def __enter__(self) -> None:
        import torch

        self.before = torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device)
        torch.set_autocast_enabled(self.device, self.half is not None)
        torch.set_autocast_dtype(self.device, self.half or self.before[1])

    def __exit__(self, *_: Any) -> None:
        import torch

        torch.set_autocast_enabled(self.device, self.before[0])
        torch.set_autocast_dtype(self.device, self.before[1])


def kinds(graph: Any, half: Any, device: str) -> list[tuple[str, set[Any]]]:
    """After the casts: the dtypes of the arguments of each call that is not a cast."""
    import torch

    from lamina.convert.torch.casts import with_casts

    with autocast(device, half):
        with_casts(graph)
        assert torch.get_autocast_dtype(device) == half  # as it was
    calls = [n for n in graph.graph.nodes if n.op.startswith("call") and n.target != "to"]
    return [(n.name, {x.meta["example_value"].dtype for x in tensors_of(n)}) for n in calls]


def tensors_of(node: Any) -> list[Any]:
    return [x for x in node.all_input_nodes if hasattr(x.meta["example_value"], "dtype")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_a_product_behind_a_norm_gets_its_weight_in_the_half_type(device: str, half: str) -> None:
    """Fake tensors of a GPU take a convolution of two dtypes; the second one's weight is cast all the same."""
    import torch
    import torch.nn.functional as F

    def block(x: Any, a: Any, mean: Any, var: Any, b: Any) -> Any:
        h = F.relu(F.batch_norm(torch.conv2d(x, a), mean, var, training=False))
        return torch.conv2d(h + torch.conv2d(x, a), b)

    kind = getattr(torch, half)
    sizes = ((2, 4, 8, 8), (4, 4, 1, 1), (4,), (4,), (4, 4, 3, 3))
    graph = seen(block, device, kind, *[torch.float32] * 5, sizes=sizes)
    found = dict(kinds(graph, kind, device))
    assert found["conv2d"] == found["conv2d_1"] == found["conv2d_2"] == found["add"] == {kind}
    assert found["batch_norm"] == {kind, torch.float32}  # statistics stay what they are


def test_functions_compute_in_what_the_devices_list_says() -> None:
    import torch
    import torch.nn.functional as F

    half, single = torch.bfloat16, torch.float32

    def arguments(function: Callable[..., Any], device: str, *dtypes: Any) -> set[Any]:
        return kinds(seen(function, device, half, *dtypes), half, device)[0][1]

    for device in ("cpu", "cuda"):
        for dtypes in ((half, single), (single, half), (single, single), (half, half)):
            assert arguments(lambda x, w: x @ w, device, *dtypes) == {half}
            assert arguments(F.linear, device, *dtypes) == {half}
            assert arguments(torch.mm, device, *dtypes) == {half}
            assert arguments(F.mse_loss, device, *dtypes) == {single}
            assert arguments(lambda x, y: torch.cat([x, y]), device, *dtypes) == (
                {half} if dtypes == (half, half) else {single}
            )
        assert arguments(torch.mm, device, torch.float64, torch.float64) == {torch.float64}
    # What only a GPU's list has.
    assert arguments(torch.exp, "cuda", half) == {single}
    assert arguments(torch.exp, "cpu", half) == {half}
    assert arguments(lambda x: x.softmax(-1), "cuda", half) == {single}
    assert arguments(lambda x, w: F.layer_norm(x, (8, 8), w), "cuda", half, single) == {single}
    assert arguments(lambda x, w: F.layer_norm(x, (8, 8), w), "cpu", half, single) == {half, single}
    assert arguments(torch.addcmul, "cuda", half, single, half) == {single}


def test_a_recurrent_layer_on_a_gpu_computes_in_the_half_type_and_what_follows_sees_it() -> None:
    """cuDNN's autocast; Dynamo takes the layer apart, and saw float32 states and results."""
    import torch
    from torch._subclasses import FakeTensorMode

    half, single = torch.bfloat16, torch.float32
    graph = torch.fx.Graph()
    with FakeTensorMode():

        def tensor(*size: int) -> Any:
            return torch.empty(size, device="cuda")

        x, h, w, r, y = tensor(5, 2, 8), tensor(1, 2, 8), tensor(8, 8), tensor(8, 8), tensor(5, 2, 8)

        def node(op: str, target: Any, args: Any, value: Any) -> torch.fx.Node:
            made = graph.create_node(op, target, args, {})
            made.meta["example_value"] = value
            return made

        inputs = [node("placeholder", n, (), v) for n, v in zip("xhwr", (x, h, w, r), strict=True)]
        layer = node(
            "call_function",
            torch.rnn_tanh,
            (inputs[0], inputs[1], inputs[2:], False, 1, 0.0, False, False, False),
            (y, h),
        )
        first = node("call_function", operator.getitem, (layer, 0), y)
        scaled = node("call_function", torch.relu, (first,), y)
        graph.output(node("call_function", torch.sum, (scaled,), y.sum()))
    module = torch.fx.GraphModule({}, graph)
    found = dict(kinds(module, half, "cuda"))
    assert found["rnn_tanh"] == found["relu"] == {half}
    assert found["sum_1"] == {single}  # a GPU's list again: sums in float32


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("given", ["float32", "bfloat16"])
def test_recurrent_layers_come_in(kind: str, given: str) -> None:
    import torch

    from tests.helpers.torch_training import Recurrent, compiled

    torch.manual_seed(0)
    model = Recurrent(kind, num_layers=2)
    twin = copy.deepcopy(model)
    x = torch.randn(4, 5, 6).to(getattr(torch, given))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            wanted, states = model(x), model.rnn(x)[0].dtype
        except RuntimeError:  # PyTorch's oneDNN has an LSTM in bfloat16 on processors with AVX-512 alone
            with ExitStack() as stack:
                stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
                torch._C._set_mkldnn_enabled(False)
                wanted, states = model(x), torch.bfloat16
        found = compiled(twin)(x)
        assert compiled(twin.rnn)(x)[0].dtype == states
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
    wanted.float().sum().backward()
    found.float().sum().backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert q.grad is not None
        assert q.grad.dtype == torch.float32
        torch.testing.assert_close(q.grad, p.grad, atol=0.05, rtol=0.05)


def test_residual_blocks_behind_norms() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.b = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.n, self.m = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.n(self.a(x)))
            h = torch.relu(self.m(self.b(h)) + x)
            return self.head(torch.nn.functional.adaptive_avg_pool2d(self.a(h), 1).flatten(1))

    torch.manual_seed(0)
    model = Block()
    twin = copy.deepcopy(model)
    run = compiled(twin)
    for kind in (torch.float32, torch.bfloat16):  # whatever dtype arrives
        x = torch.randn(2, 4, 8, 8).to(kind)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted, found = model(x), run(x)
        assert found.dtype == wanted.dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, atol=0.03, rtol=0.03)


def test_checkpoints_under_autocast() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = checkpoint(lambda x: torch.relu(self.a(x)).exp(), x, use_reentrant=False)
            return self.b(h)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, found = model(x), compiled(model)(x)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, atol=0.03, rtol=0.03)
    found.float().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_autocast_gives_the_dtypes_and_about_the_losses_of_pytorch() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images, trained

    def small(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.01)

    torch.manual_seed(0)
    model = ConvNet()
    twin = copy.deepcopy(model)
    x, _ = images(0)
    run = compiled(twin)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(x).dtype == model(x).dtype == torch.bfloat16
        eager, ours = (trained(m, f, images, optimizer=small) for m, f in ((model, model), (twin, run)))
    np.testing.assert_allclose(ours, eager, rtol=0, atol=0.02)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in twin.parameters())


@pytest.mark.filterwarnings("ignore:A window was not provided:UserWarning")
def test_transforms_under_autocast_are_float32() -> None:
    """Of a signal in the half type; what the transform gives is complex."""
    import torch

    from tests.helpers.torch_training import compiled

    layer, window = torch.nn.Conv1d(1, 1, 3), torch.hann_window(8)

    def transforms(x: Any) -> Any:
        y = layer(x)[:, 0]
        return (
            torch.fft.rfft(y).abs(),
            torch.stft(y, 8, 4, window=window, return_complex=True).real,
            torch.stft(y, 8, 4, return_complex=True).imag,
        )

    x = torch.randn(2, 1, 34, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for y, wanted in zip(compiled(transforms)(x), transforms(x), strict=True):
            assert y.dtype == wanted.dtype == torch.float32
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-4)


def test_a_region_of_autocast_within_the_network() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.relu(self.a(x))
            return self.b(h.float())

    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 6)
    y = compiled(model)(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(x), atol=0.02, rtol=0.02)
    assert not torch.equal(y, model.b(torch.relu(model.a(x))))  # it was bfloat16 within


def test_a_region_that_switches_it_off_holds_for_what_pytorch_runs(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    @torch.library.custom_op("lamina_tests::product", mutates_args=())
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    product.register_fake(lambda x, y: x @ y)

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            own = product(x, y)
        return own * 2, x @ y

    x, y = torch.randn(8, 8), torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), caplog.at_level(logging.WARNING, "lamina.convert"):
        found, wanted = compiled(f)(x, y), f(x, y)
    assert [t.dtype for t in found] == [t.dtype for t in wanted] == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(found, wanted)
    assert "product" in caplog.text
    caplog.clear()
