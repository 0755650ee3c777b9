"""Graphs of torch.fx as programs of Lamina's ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lamina.ops import special

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_tensors_compute_and_traced_values_record() -> None:
    import torch

    import lamina as lm
    from lamina.spec import Spec, float32
    from tests.helpers.torch_functions import captured, close

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    x = torch.randn(3, 4)
    program = captured(f, x)
    close(program(x).outputs[0], f(x))
    graph = lm.graph.trace(lambda v: program(v).outputs[0], Spec((5, 4), float32))
    assert [str(n.op).split("(")[0] for n in graph.nodes][:1] == ["relu"]


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_what_is_made_without_tensors_is_made_where_the_program_runs(options: dict[str, Any]) -> None:
    """PyTorch indexes a tensor on a GPU by numbers that were drawn on the CPU."""
    import torch

    from lamina.convert.torch.interpreter import _applied
    from lamina.runtime import Device

    def drawn(n: int, *, device: Any = "anywhere") -> tuple[int, Any]:
        return n, device

    given = {k: torch.device(v) for k, v in options.items()}
    node = torch.fx.Graph().call_function(torch.randperm, (6,), given)
    there = Device("cuda:0")
    assert _applied(node, drawn, (6,), given, there) == (6, there)
    assert _applied(node, lambda n: n, (6,), given, there) == 6


def test_a_program_runs_where_one_of_its_tensors_lies_on_a_gpu() -> None:
    """Whatever comes first: indices, and constants, may lie on the CPU."""
    from lamina.convert.torch.interpreter import _place
    from lamina.runtime import Device

    cpu, gpu = Device("cpu"), Device("cuda:0")
    assert _place([cpu, gpu, cpu]) == gpu
    assert _place([cpu, cpu]) == cpu
    assert _place([]) is None


def test_what_has_no_counterpart_is_known_before_running() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError
    from tests.helpers.torch_functions import captured

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x.detach()) + torch.linalg.eigvals(x).real

    program = captured(f, torch.randn(3, 3))
    reasons = {node.name: reason for node, reason in program.unknown()}
    assert "lamina.ops has no function 'airy_ai'" in reasons.values()
    assert any("complex" in r for r in reasons.values())
    with pytest.raises(TorchConversionError, match="special_airy_ai.*test_interpreter.py"):
        program(torch.randn(3, 3))


def test_batch_norm_gives_its_new_statistics() -> None:
    import torch

    from tests.helpers.torch_functions import close, exported

    net = torch.nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 2, 2)
    program = exported(net, x)
    found = program(x)
    net(x)
    assert set(found.changed) == {"running_mean", "running_var", "num_batches_tracked"}
    for name, value in found.changed.items():
        close(value, getattr(net, name))


@pytest.mark.parametrize(
    "text",
    [
        "torch.linalg.cross(x, x.flip(0))", "torch.linalg.diagonal(x)", "torch.linalg.diagonal(x, offset=1)",
        "torch.linalg.diagonal(x, dim1=0, dim2=1)", "torch.subtract(x, x * 2, alpha=3)", "torch.trapz(x)",
        "torch.divide(x, 2, rounding_mode='floor')", "torch.pdist(x[0])",
        "torch.ops.aten.einsum('bij,bjk,bkl->il', [x, x, x], path=[1, 2, 0, 1])",
        "torch.gradient(x, dim=1)[0]", "x.tile(2)",
    ],
)  # fmt: skip
def test_a_function_by_another_name_keeps_its_own_defaults(text: str) -> None:
    import torch

    from tests.helpers.torch_functions import agree

    scope = {"torch": torch}
    agree(eval(f"lambda x: {text}", scope), torch.randn(3, 3, 3))


#: How functions of torch.special are called that take more than one tensor; x is between 0 and 1.
SPECIAL: dict[str, Any] = {
    "softmax": lambda f, x: f(x, -1),
    "log_softmax": lambda f, x: f(x, -1),
    "logsumexp": lambda f, x: f(x, -1, True),
    "polygamma": lambda f, x: f(2, x + 1),
    "multigammaln": lambda f, x: f(x + 3, 2),
    "round": lambda f, x: f(x, decimals=1),
    "logit": lambda f, x: f(x, eps=1e-3),
    "xlogy": lambda f, x: f(x, x + 1),
    "xlog1py": lambda f, x: f(x, x + 1),
    "zeta": lambda f, x: f(x + 1.5, x + 1),
    "gammainc": lambda f, x: f(x.detach() + 1, x),
    "gammaincc": lambda f, x: f(x.detach() + 1, x),
}


def has_derivative(function: Any, x: torch.Tensor) -> bool:
    """Whether PyTorch differentiates a function."""
    try:
        function(x.clone().requires_grad_()).sum().backward()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", sorted(special.__all__))
def test_special_functions_come_in_by_their_names(name: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    function = getattr(torch.special, name)
    of_degree = (lambda f, x: f(x, 3)) if "polynomial" in name else (lambda f, x: f(x))

    def call(x: torch.Tensor) -> torch.Tensor:
        return SPECIAL.get(name, of_degree)(function, x)

    point = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).double()
    differs = has_derivative(call, point)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(point)

        def forward(self, scale: torch.Tensor) -> torch.Tensor:
            return call(self.x if differs else self.x.detach()) * scale * self.x

    net, scale = Net(), torch.ones(3, 4).double()
    found = check(net, from_torch(net, scale), scale)
    assert found.output < 1e-9
    assert found.gradient < 1e-9


def test_sizes_that_nothing_reads_but_checks_are_left_out() -> None:
    import torch

    from lamina import convert

    class Blur(torch.nn.Module):
        """A filter whose length depends on a parameter's value. x: [N, 1, L]."""

        def __init__(self) -> None:
            super().__init__()
            self.sigma = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Any) -> Any:
            tail = int(self.sigma.item() * 2 + 0.5)
            places = torch.arange(-tail, tail + 1)
            weight = torch.exp(-0.5 * (places / self.sigma) ** 2)
            side = (weight.shape[0] - 1) // 2
            padded = torch.nn.functional.pad(x, (side, side))
            return torch.nn.functional.conv1d(padded, weight.view(1, 1, -1))

    x = torch.randn(2, 1, 9, generator=torch.Generator().manual_seed(0))
    net = Blur()
    parity = convert.check(net, convert.from_torch(net, x, share=False), x)
    assert max(parity.output, parity.gradient) < 1e-5


def test_writes_at_numbers_of_tensors_are_no_checks() -> None:
    """Nothing reads the results of `out[n:] = x[n:] @ w` and `out += n`, which Dynamo's graphs have."""
    import operator

    import numpy as np
    import torch

    import lamina as lm
    from lamina.convert.torch import FxProgram

    graph = torch.fx.Graph()
    x, w, at = (graph.placeholder(name) for name in ("x", "w", "at"))
    number = graph.call_method("item", (at,))
    checked = graph.call_function(operator.ge, (number, 0))
    graph.call_function(torch._assert, (checked, "a count"))
    out = graph.call_method("new_zeros", (x, (4, 2)))
    part = graph.call_function(operator.getitem, (x, slice(number, None)))
    product = graph.call_function(operator.matmul, (part, w))
    graph.call_function(operator.setitem, (out, slice(number, None), product))
    graph.call_function(operator.iadd, (out, number))
    graph.output((out,))
    rows, weights = torch.randn(4, 3), torch.randn(3, 2)
    program = FxProgram(torch.fx.GraphModule({}, graph))
    found = program(*(lm.tensor(v.numpy()) for v in (rows, weights, torch.tensor(1))))
    wanted = torch.cat([torch.zeros(1, 2), rows[1:] @ weights]) + 1
    np.testing.assert_allclose(found.outputs[0].numpy(), wanted.numpy(), rtol=1e-5)
