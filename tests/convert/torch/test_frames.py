"""Networks with recurrent layers come to the backend, whatever other backends did with the same code before."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F100")]


def network() -> Any:
    """A recurrent layer and a linear one, whose class is made anew, as its code is what Dynamo marks."""
    import torch

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = torch.nn.LSTM(4, 4, batch_first=True), torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    return Recurrent()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The backend's graphs."""
    from lamina.convert.torch import backend

    found: list[Any] = []
    plain = backend.GraphFunction.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        found.append(self)
        plain(self, *args, **kwargs)

    monkeypatch.setattr(backend.GraphFunction, "__init__", init)
    return found


def other(net: Any) -> Any:
    """Compiled for another backend."""
    import torch

    return torch.compile(copy.deepcopy(net), backend="eager")


def ours(net: Any) -> Any:
    import torch

    from lamina.convert.torch.backend import lamina

    return torch.compile(copy.deepcopy(net), backend=lamina)


def test_behind_another_backend(made: list[Any]) -> None:
    import torch

    net, x = network(), torch.randn(2, 5, 4)
    others, compiled = other(net), ours(net)
    torch.testing.assert_close(others(x), net(x))
    torch.testing.assert_close(compiled(x), net(x))
    assert len(made) == 1
    assert made[0].left == {}
    assert torch._dynamo.config.allow_rnn is False


def test_calls_of_both_in_turn(made: list[Any]) -> None:
    """What the other one marks again does not keep the compiled program from being called, nor is it made anew."""
    import torch

    from lamina.convert.torch import backend

    net, x = network(), torch.randn(2, 5, 4)
    others, compiled = other(net), ours(net)
    for _ in range(3):
        others(x)
        compiled(x)
    assert len(made) == 1
    ran: list[Any] = []
    plain = backend.GraphFunction.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            backend.GraphFunction, "__call__", lambda self, *a: (ran.append(self), plain(self, *a))[1]
        )
        for _ in range(2):
            others(x)
            compiled(x)
    assert ran == made * 2


def test_a_layer_alone(made: list[Any]) -> None:
    """Dynamo calls it by a function of its own, whose code all such modules share."""
    import torch

    net, x = torch.nn.GRU(4, 3), torch.randn(5, 2, 4)
    torch._dynamo.reset()
    other(net)(x)
    torch.testing.assert_close(ours(net)(x)[0], net(x)[0])
    assert len(made) == 1


def test_a_function_that_calls_a_network(made: list[Any]) -> None:
    import torch

    from lamina.convert.torch.backend import lamina

    net, x = network(), torch.randn(2, 5, 4)

    def loss(x: Any) -> Any:
        return net(x).sum()

    with torch.no_grad():
        wanted = torch.compile(loss, backend="eager")(x)
        torch.testing.assert_close(torch.compile(loss, backend=lamina)(x), wanted)
    assert sum(g.left == {} and g.instead is None for g in made) == 1


def test_what_a_user_keeps_from_dynamo_stays_so(made: list[Any]) -> None:
    import torch

    net, x = network(), torch.randn(2, 5, 4)
    forward = type(net).forward
    type(net).forward = torch._dynamo.disable(forward)
    torch.testing.assert_close(ours(net)(x), net(x))
    assert made == []


def test_other_backends_stay_as_they_are() -> None:
    from torch._dynamo import eval_frame

    from lamina.convert.torch.backend import lamina

    assert not hasattr(eval_frame.get_compiler_fn("eager"), "backend_ctx_ctor")
    assert eval_frame.get_compiler_fn("inductor") is not eval_frame.get_compiler_fn(lamina)


def test_a_mark_from_before_this_package_was_imported() -> None:
    """In a fresh process."""
    program = """
import copy, torch

class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(4, 4)
    def forward(self, x):
        return self.rnn(x)[0] + 1

net, x = Recurrent(), torch.randn(2, 5, 4)
torch.compile(copy.deepcopy(net), backend="eager")(x)
from lamina.convert.torch import backend
made, plain = [], backend.GraphFunction.__init__
def init(self, *args, **kwargs):
    made.append(self)
    plain(self, *args, **kwargs)
backend.GraphFunction.__init__ = init
torch.compile(copy.deepcopy(net), backend=backend.lamina)(x)
print(len(made))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]


def test_compiled_modules_are_copied_and_saved(made: list[Any]) -> None:
    import io

    import torch

    run, x = ours(torch.nn.Bilinear(4, 4, 2)), torch.randn(3, 4)
    wanted = run(x, x)
    saved = io.BytesIO()
    torch.save(run, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(run), torch.load(saved, weights_only=False)):
        torch.testing.assert_close(twin(x, x), wanted)
        with torch.no_grad():
            twin.weight.mul_(2)
        torch.testing.assert_close(run(x, x), wanted)
    assert made
    assert all(graph.instead is None for graph in made)
