"""Regions of autocast."""

from __future__ import annotations

import operator
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


@pytest.mark.parametrize(
    "function",
    ["x @ x", "torch.nn.functional.linear(x, x).softmax(-1)", "(x @ x).sum() + x", "(x @ x).exp()"],
)
def test_dtypes_are_those_of_torch(function: str) -> None:
    import torch

    from tests.helpers.torch_functions import agree

    own = eval("lambda x: " + function, {"torch": torch})

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return own(x)

    def by_default(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return own(x)

    agree(f, torch.rand(4, 4), tolerance=2e-2)
    agree(by_default, torch.rand(4, 4), tolerance=2e-2)


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_a_region_within_another_is_that_of_torch(outer: bool, inner: bool) -> None:
    """One that is switched off has a type, too, and computes in none of its own; behind it is the outer one."""
    import torch

    from tests.helpers.torch_functions import agree

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16, enabled=outer):
            first = x @ x
            with torch.autocast("cpu", torch.bfloat16, enabled=inner):
                second = x @ x
            third = x @ x
        return first, second, third, x @ x

    agree(f, torch.rand(4, 4), tolerance=2e-2)


@pytest.mark.parametrize("inner", [True, False])
def test_a_region_before_captured_calls_is_that_of_torch(inner: bool) -> None:
    """As calls that begin and end it, not as a subgraph."""
    import torch

    from lamina.convert.torch import FxProgram
    from tests.helpers.torch_functions import close

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    found = []
    for enabled in (True, inner):
        region = graph.call_function(
            torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, enabled, None)
        )
        found.append((region, graph.call_function(torch.matmul, (x, x))))
    results = [y for _, y in found]
    for region, _ in reversed(found):
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (region,))
        results.append(graph.call_function(torch.matmul, (x, x)))
    graph.output(tuple(results))
    module, given = torch.fx.GraphModule({}, graph), torch.rand(4, 4)
    wanted = module(given)
    half = torch.bfloat16
    assert [y.dtype for y in wanted] == [half, half if inner else torch.float32, half, torch.float32]
    close(list(FxProgram(module)(given).outputs), list(wanted), 2e-2)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("half", ["bfloat16", "float16", None])
def test_a_region_of_a_subgraph_is_that_of_torch(half: str | None, enabled: bool) -> None:
    """Of calls that nobody has seen the results of; behind it is none."""
    import torch

    from lamina.convert.torch import FxProgram
    from tests.helpers.torch_functions import close

    inner = torch.fx.Graph()
    inner.output((inner.call_function(torch.matmul, (inner.placeholder("x"),) * 2),))
    module = torch.nn.Module()
    module.add_module("body", torch.fx.GraphModule({}, inner))
    graph = torch.fx.Graph(module)
    x, body = graph.placeholder("x"), graph.get_attr("body")
    region = torch.ops.higher_order.wrap_with_autocast
    kind = None if half is None else getattr(torch, half)
    made = graph.call_function(region, ("cpu", kind, enabled, None, body, x))
    graph.output(
        (graph.call_function(operator.getitem, (made, 0)), graph.call_function(torch.matmul, (x, x)))
    )
    program, given = torch.fx.GraphModule(module, graph), torch.rand(4, 4)
    wanted = program(given)
    assert wanted[0].dtype == ((kind or torch.bfloat16) if enabled else torch.float32)
    close(list(FxProgram(program)(given).outputs), list(wanted), 2e-2)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_trains_in_bf16(kind: str) -> None:
    """The zeros that it begins with are constants of the graph, made in float32."""
    import numpy as np
    import torch

    import lamina as lm
    from tests.helpers.torch_training import Recurrent, sequences

    torch.manual_seed(0)
    module, (x, labels) = Recurrent(kind), sequences(0)
    losses = {}
    for precision in ("fp32", "bf16"):
        net = lm.convert.from_torch(module, x, share=False)
        step = lm.train_step(net, lm.ops.cross_entropy, lm.optim.SGD(lr=0.1), precision=precision)
        losses[precision] = [float(step(x, labels)) for _ in range(3)]
    np.testing.assert_allclose(losses["bf16"], losses["fp32"], rtol=0.03)
    assert losses["bf16"] != losses["fp32"]


def test_spectral_norm_trains_in_bf16() -> None:
    """Its vectors are buffers, which stay in float32 beside parameters in bfloat16."""
    import numpy as np
    import torch

    import lamina as lm

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4)), torch.nn.Tanh()
    )
    x, wanted = torch.randn(8, 6), torch.randn(8, 4)
    losses = {}
    for precision in ("fp32", "bf16"):
        net = lm.convert.from_torch(module, x, share=False)
        step = lm.train_step(net, lm.ops.mse_loss, lm.optim.SGD(lr=0.1), precision=precision)
        losses[precision] = [float(step(x, wanted)) for _ in range(3)]
    np.testing.assert_allclose(losses["bf16"], losses["fp32"], rtol=0.03)
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_products_of_groups_whose_rows_stay_float32_are_in_the_half_type(precision: str) -> None:
    """As experts after a norm or a router in float32: the parameters are cast, the rows are not."""
    import numpy as np
    import torch

    import lamina as lm
    import tests.helpers.vision  # noqa: F401  transformers imports torchvision where it is
    from lamina.convert import from_torch

    import transformers.integrations.moe  # isort: skip  # noqa: F401

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2, 8, 16))

        def forward(self, x: Any, ends: Any) -> Any:
            return torch.ops.transformers.grouped_mm_fallback(x.float().softmax(-1), self.weight, offs=ends)

    net, x, ends = Experts(), torch.randn(8, 8), torch.tensor([3, 8], dtype=torch.int32)
    predictor = lm.infer.Predictor(from_torch(net, x, ends), precision=precision)
    found = predictor(x.numpy(), ends.numpy())
    np.testing.assert_allclose(found.float().numpy(), net(x, ends).detach().numpy(), atol=3e-2)
