"""`torch.compile(model, backend="lamina")` in unchanged PyTorch programs, beside PyTorch alone."""

import copy
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("B024", "B049"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    ),  # Dynamo looks at it
]
ROOT = Path(__file__).parents[3]


def same_losses(model: Any, batches: Any, atol: float = 1e-4, **kwargs: Any) -> None:
    from tests.helpers.torch_training import both, differences

    eager, ours, a, b = both(model, batches, **kwargs)
    np.testing.assert_allclose(ours, eager, rtol=0, atol=atol)
    assert differences(a, b) < 10 * atol


def test_the_entry_point_names_the_backend() -> None:
    from lamina.convert.torch import backend

    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["torch_dynamo_backends"] == {"lamina": "lamina.convert.torch.backend:lamina"}
    assert callable(backend.lamina)


def test_convolutions_with_batch_norm() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, images

    torch.manual_seed(0)  # there are weights by which rounding turns a relu on or off
    same_losses(ConvNet(), images)


def test_transformer_with_tied_weights() -> None:
    from tests.helpers.torch_training import Encoder, tokens

    same_losses(Encoder(), tokens)


@pytest.mark.feature("F100")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("LSTM", {}),
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"proj_size": 3}),
        ("GRU", {"bidirectional": True}),
        ("GRU", {"num_layers": 2}),
        ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
        ("RNN", {}),
    ],
)
def test_recurrent_layers(kind: str, kwargs: dict[str, Any]) -> None:
    import torch

    from tests.helpers.torch_training import Recurrent, compiled, sequences

    model = Recurrent(kind, **kwargs)
    y = compiled(model)(sequences(0)[0])
    # One function from the parameters to the result: nothing of it is PyTorch's.
    assert {f.name() for f, _ in y.grad_fn.next_functions if f} == {"torch::autograd::AccumulateGrad"}
    torch.testing.assert_close(y, model(sequences(0)[0]))
    same_losses(model, sequences, steps=5)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "NAdam"])
def test_optimizers(name: str) -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, both, images

    # States may differ where a gradient is 0 but for rounding (a bias before a norm), which these rules blow up.
    eager, ours, *_ = both(ConvNet(), images, optimizer=lambda p: getattr(torch.optim, name)(p, lr=1e-3))
    np.testing.assert_allclose(ours, eager, rtol=0, atol=1e-4)


def test_a_gradient_scaler_trains() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images

    model = ConvNet()
    run = compiled(model)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    before = copy.deepcopy(model.state_dict())
    x, labels = images(0)
    loss = torch.nn.functional.cross_entropy(run(x), labels)
    scaler.scale(loss).backward()
    scaler.step(rule)
    scaler.update()
    assert not torch.equal(before["head.weight"], model.head.weight)


def test_inference_and_evaluation() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images

    model = ConvNet(p=0.5)
    model(images(9)[0])
    run, x = compiled(model), images(0)[0]
    model.eval()
    with torch.no_grad():
        wanted, found = model(x), run(x)
    torch.testing.assert_close(found, wanted)
    assert not found.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(run(x), wanted)
    assert run(x).requires_grad
    model.train()
    mean = model.norm.running_mean.clone()
    run(x)
    assert not torch.equal(mean, model.norm.running_mean)


def test_frozen_parameters_hooks_and_unused_parameters() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images

    model = ConvNet()
    model.unused = torch.nn.Linear(2, 2)
    model.second.weight.requires_grad_(False)
    seen: list[str] = []
    model.head.weight.register_hook(lambda g: seen.append("hook") or 2 * g)
    model.head.bias.register_post_accumulate_grad_hook(lambda p: seen.append("post"))
    x = images(0)[0].requires_grad_()
    compiled(model)(x).sum().backward()
    assert sorted(seen) == ["hook", "post"]
    assert model.second.weight.grad is None
    assert model.unused.weight.grad is None
    doubled = model.head.weight.grad.clone()
    found = x.grad.clone()
    model.zero_grad()
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(doubled, model.head.weight.grad)
    torch.testing.assert_close(found, x.grad, atol=1e-5, rtol=1e-4)


def test_batch_sizes_are_programs_of_one_graph() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images

    model = ConvNet().eval()
    run = compiled(model, dynamic=True, options={"max_programs": 2})
    for count in (4, 3, 7, 4, 5):
        x = images(0, count)[0]
        torch.testing.assert_close(run(x), model(x), atol=1e-5, rtol=1e-4)


def test_graph_breaks() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.a(x))
            if h.sum() > 0:
                h = h * 2
            return self.b(h)

    torch.manual_seed(1)
    model, x = Net(), torch.randn(3, 4)
    run = compiled(model)
    torch.testing.assert_close(run(x), model(x))
    run(x).sum().backward()
    found = model.a.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(found, model.a.weight.grad)


def test_writes_views_and_arguments_among_the_results() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        x[0].mul_(2)
        return x, x[1], x.t(), y + x, (x > 1), x.sum().to(torch.int64), 3

    a = torch.arange(6.0).reshape(2, 3)
    b = a.clone()
    wanted, found = program(a, torch.ones(2, 3)), compiled(program)(b, torch.ones(2, 3))
    torch.testing.assert_close(a, b)
    for w, f in zip(wanted, found, strict=True):
        torch.testing.assert_close(f, w) if isinstance(w, torch.Tensor) else None
    assert found[0] is b
    assert found[1].data_ptr() == b[1].data_ptr()
    assert found[2].data_ptr() == b.data_ptr()


def test_inputs_of_any_strides_dtypes_and_numbers() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def program(x: torch.Tensor, i: torch.Tensor, m: torch.Tensor, scale: float, n: int) -> torch.Tensor:
        return torch.where(m, x, -x)[i] * scale + n

    run = compiled(program)
    x = torch.randn(6, 4).t()[::2]
    i, m = torch.tensor([1, 0, 1]), torch.tensor([True, False] * 3)
    for scale, n in ((0.5, 1), (0.25, 2), (2.0, 5)):
        torch.testing.assert_close(run(x, i, m, scale, n), program(x, i, m, scale, n))
    image = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    torch.testing.assert_close(compiled(conv)(image), conv(image))


def test_unknown_options_are_refused() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    with pytest.raises(Exception, match=r"unknown options \['fast'\]; there are max_programs"):
        compiled(torch.nn.Linear(3, 2), options={"fast": True})(torch.ones(1, 3))


def test_other_backends_do_not_get_recurrent_layers() -> None:
    import torch

    from lamina.convert.torch import backend  # noqa: F401 - it is loaded

    seen: list[Any] = []
    torch._dynamo.reset()
    rnn = torch.nn.LSTM(3, 4)
    torch.compile(rnn, backend=lambda graph, _: seen.append(graph) or graph.forward)(torch.ones(2, 1, 3))
    assert not any("lstm" in str(graph.graph) for graph in seen)
    assert torch._dynamo.config.allow_rnn is False


@pytest.mark.feature("F100")
def test_packed_sequences_initial_states_and_cells() -> None:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from tests.helpers.torch_training import compiled, gradients_of

    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.LSTM(6, 8, batch_first=True, bidirectional=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    gru, cell = torch.nn.GRU(6, 8, 2), torch.nn.LSTMCell(6, 5)
    cases = [
        (Packed(), (torch.randn(3, 5, 6), torch.tensor([5, 3, 4]))),
        (gru, (torch.randn(5, 3, 6), torch.randn(2, 3, 8))),
        (cell, (torch.randn(3, 6),)),
    ]
    for model, args in cases:
        wanted, found = (f(*args) for f in (model, compiled(model)))
        wanted, found = (y if isinstance(y, torch.Tensor) else y[0] for y in (wanted, found))
        torch.testing.assert_close(found, wanted)
        for a, b in zip(gradients_of(model, found), gradients_of(model, wanted), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_step_of_an_optimizer_of_ones_own_is_compiled() -> None:
    """It writes parameters within `no_grad`, called where gradients are recorded."""
    import torch

    from tests.helpers.torch_training import compiled

    layer = torch.nn.Linear(4, 3)
    momenta = [torch.zeros_like(p) for p in layer.parameters()]

    @torch.no_grad()
    def step() -> None:
        for p, m in zip(layer.parameters(), momenta, strict=True):
            m.lerp_(p.grad, 0.1)
            p.mul_(0.9).add_(m, alpha=-0.1)

    for p in layer.parameters():
        p.grad = torch.randn(p.shape)
    first = [p.detach().clone() for p in layer.parameters()]
    run = compiled(step)
    for _ in range(2):
        run()
    for p, p0 in zip(layer.parameters(), first, strict=True):
        torch.testing.assert_close(p.detach(), p0 * 0.81 - 0.1 * (0.9 * 0.1 + 0.19) * p.grad)
        assert p.requires_grad


def test_regions_without_gradient_and_detached_values() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            scale = x * 2
        return scale * x + x.detach(), (x * 3).detach(), x.argmax(1)

    x = torch.randn(4, 3, requires_grad=True)
    found, wanted = compiled(program)(x), program(x)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
        assert a.requires_grad == b.requires_grad
    torch.testing.assert_close(*(torch.autograd.grad(y[0].sum(), x) for y in (found, wanted)))


_BY_NAME = """
import torch
layer = torch.nn.LSTM(3, 4)
x = torch.randn(2, 1, 3)
y, _ = torch.compile(layer, backend="lamina")(x)
assert "TwoPasses" in type(y.grad_fn).__name__, y.grad_fn
torch.testing.assert_close(y, layer(x)[0])
"""


@pytest.mark.feature("F100")
def test_pytorch_finds_the_backend_by_its_name(tmp_path: Path) -> None:
    """In a fresh process, the first frame being a recurrent layer; as pip installs the entry point."""
    facts = tmp_path / "installed_lamina-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-lamina\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\nlamina = lamina.convert.torch.backend:lamina\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    subprocess.run([sys.executable, "-c", _BY_NAME], check=True, env={**os.environ, "PYTHONPATH": path})


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are made from now on."""
    from lamina.convert.torch import backend

    made: list[Any] = []

    class Counted(backend.CompiledGraph):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(backend, "CompiledGraph", Counted)
    return made


@pytest.mark.parametrize(
    "function", ["x * s + s**2", "torch.where(x > s, x, s / 2)", "x.clamp(-s, s).long() * s"]
)
def test_floats_that_change_from_call_to_call_are_one_program(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo sees a float as a constant once; what it sees then serves all values."""
    import torch

    from tests.helpers.torch_training import compiled

    f = eval("lambda x, s: " + function, {"torch": torch})
    made, run, x = counting(monkeypatch), compiled(f), torch.randn(3, 4)
    for i in range(12):
        found, wanted = run(x, 0.3 * i + 0.1), f(x, 0.3 * i + 0.1)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
    assert len(made) <= 2


def test_floats_in_float64_half_types_and_under_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = torch.nn.Linear(4, 4), 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale / (1 + self.scale)

    for kind, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        made = counting(monkeypatch)
        model = Scaled().to(kind)
        run, x = compiled(model), torch.randn(3, 4, dtype=kind)
        for i in range(5):
            model.scale = 0.1 * i + 0.7
            grads = []
            for call in (run, model):
                model.zero_grad()
                y = call(x)
                assert y.dtype == kind
                y.sum().backward()
                grads.append([y.detach(), *(p.grad for p in model.parameters())])
            torch.testing.assert_close(*grads, atol=tolerance, rtol=tolerance)
        assert len(made) <= 2


def test_floats_that_an_op_must_know_are_a_program_each_within_the_bound() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def f(x: torch.Tensor, s: float) -> torch.Tensor:
        return torch.nn.functional.leaky_relu(x, s) * max(s, 0.2)

    functions: list[Any] = []
    x = torch.randn(8)
    with pytest.MonkeyPatch.context() as patch:
        from lamina.convert.torch import backend

        own = backend.GraphFunction.__init__
        patch.setattr(
            backend.GraphFunction,
            "__init__",
            lambda self, *a, **k: functions.append(self) or own(self, *a, **k),
        )
        run = compiled(f, dynamic=True, options={"max_programs": 3})
        for i in range(7):
            torch.testing.assert_close(run(x, 0.1 * i + 0.05), f(x, 0.1 * i + 0.05))
    assert all(len(list(function._programs)) <= 3 for function in functions)
