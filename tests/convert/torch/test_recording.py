"""torch.fx graphs as graphs of both passes."""

import pytest

pytestmark = pytest.mark.torch


def test_what_inputs_and_outputs_of_a_recorded_graph_are() -> None:
    import torch

    from lamina.convert.torch import FxProgram
    from lamina.convert.torch.recording import record

    class Net(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, w: torch.Tensor, count: torch.Tensor, unused: torch.Tensor
        ) -> object:
            count.add_(1)
            return torch.dropout(x @ w, 0.5, True), (x > 0).sum()

    args = [torch.ones(2, 3), torch.ones(3, 4), torch.zeros((), dtype=torch.int64), torch.ones(1)]
    program = FxProgram(torch.fx.symbolic_trace(Net()))
    found = record(program, args, [0, 1], [False, True, False, True])
    assert (found.tensors, found.random, found.results, found.written) == (4, 1, 2, (2,))
    assert (found.arriving, found.wanted, found.early, list(found.late)) == ((0,), (1,), 3, [5])
    assert [v.shape for v in found.graph.outputs] == [(2, 4), (), (), (3, 4)]
    inference = record(program, args, [0], [False] * 4)
    assert (inference.arriving, inference.wanted, len(inference.graph.inputs)) == ((), (), 5)


def test_running_statistics_are_not_what_gradients_depend_on() -> None:
    import torch

    from lamina.convert.torch import FxProgram
    from lamina.convert.torch.recording import record

    class Net(torch.nn.Module):
        def __init__(self, weighs: bool) -> None:
            super().__init__()
            self.weighs = weighs

        def forward(self, x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.batch_norm(x, mean, var, training=True)
            return y * mean if self.weighs else y

    args = [torch.randn(4, 3), torch.zeros(3), torch.ones(3)]
    for weighs, overwritten in ((False, []), (True, [1])):
        program = FxProgram(torch.fx.symbolic_trace(Net(weighs)))
        found = record(program, args, [0], [True, False, False])
        assert found.written == (1, 2)
        assert found.overwritten == overwritten


@pytest.mark.parametrize("name", ["round", "sign", "floor", "detach", "argmax"])
def test_steps_have_a_gradient_of_zeros_and_constants_none(name: str) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def stepped(x: torch.Tensor) -> torch.Tensor:
        return getattr(x, name)().float() * 2

    x = torch.tensor([0.3, -1.7, 2.0], requires_grad=True)
    y = compiled(stepped)(x)
    assert y.requires_grad == stepped(x).requires_grad == (name not in ("detach", "argmax"))
    if y.requires_grad:
        y.sum().backward()
        assert x.grad is not None
        assert not x.grad.any()
