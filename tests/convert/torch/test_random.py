"""Functions that draw random numbers."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_dropout_drops_as_many_as_asked_and_nothing_in_inference() -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree, exported

    x = torch.ones(100, 100)
    agree(lambda x: F.dropout(x, 0.5, False), x)
    agree(lambda x: F.rrelu(-x, 0.1, 0.4), x)
    y = exported(lambda x: F.dropout(x, 0.25, True), x)(x).outputs[0].numpy()
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert abs(y.max() - 4 / 3) < 1e-6


def test_slopes_of_rrelu_are_drawn_between_two_numbers_in_training() -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import exported

    x = torch.cat([torch.full((100, 100), -2.0), torch.full((1, 100), 3.0), torch.zeros(1, 100)])
    y = exported(lambda x: F.rrelu(x, 0.1, 0.4, training=True), x)(x).outputs[0].numpy()
    assert (y[100] == 3).all()
    assert (y[101] == 0).all()
    slopes = y[:100] / -2
    assert 0.1 <= slopes.min() < 0.101
    assert 0.399 < slopes.max() <= 0.4
    assert abs(slopes.mean() - 0.25) < 0.005
    assert abs(slopes.std() - 0.3 / 12**0.5) < 0.005


@pytest.mark.parametrize(
    "text",
    [
        "x.clone().exponential_(2.0)",
        "torch.rand_like(x)",
        "torch.rand(100, 100) + 0 * x",
        "torch.bernoulli(x / 2)",
        "x.clone().uniform_()",
    ],
)
def test_means(text: str) -> None:
    import torch

    from tests.helpers.torch_functions import exported

    x = torch.ones(100, 100)
    y = exported(eval("lambda x: " + text, {"torch": torch}), x)(x).outputs[0].numpy()
    assert y.shape == (100, 100)
    assert abs(y.mean() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("x.clone().uniform_()", 0.5, 12**-0.5),
        ("x.clone().uniform_(2, 5)", 3.5, 3 * 12**-0.5),
        ("x.clone().normal_()", 0.0, 1.0),
        ("x.clone().normal_(2, 3)", 2.0, 3.0),
        ("x.clone().exponential_()", 1.0, 1.0),
        ("x.clone().exponential_(4.0)", 0.25, 0.25),
        ("torch.rand_like(x)", 0.5, 12**-0.5),
        ("torch.randn_like(x)", 0.0, 1.0),
        ("torch.randn_like(x, dtype=torch.float64)", 0.0, 1.0),
        ("torch.rand(x.shape) + 0 * x", 0.5, 12**-0.5),
        ("torch.randn(200, 100, dtype=torch.float64) + 0 * x", 0.0, 1.0),
        ("torch.randn(20000) + 0 * x.flatten()", 0.0, 1.0),
        ("x.clone().bernoulli_()", 0.5, 0.5),
        ("x.clone().bernoulli_(0.2)", 0.2, 0.4),
        ("F.alpha_dropout(x.cumsum(1) % 7 - 3, 0.3, True)", None, None),
    ],
)
def test_mean_and_deviation(text: str, mean: float | None, deviation: float | None) -> None:
    """Those that are known, else those of PyTorch's numbers; both within six standard errors."""
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import captured, exported

    own, x = eval("lambda x: " + text, {"torch": torch, "F": F}), torch.ones(200, 100)
    wanted = own(x)
    mean = wanted.mean().item() if mean is None else mean
    deviation = wanted.std().item() if deviation is None else deviation
    for way in (exported, captured):
        y = way(own, x)(x).outputs[0].numpy()
        assert (y.shape, str(y.dtype)) == (tuple(wanted.shape), str(wanted.dtype).removeprefix("torch."))
        assert abs(y.mean() - mean) < 6 * deviation * (2 / y.size) ** 0.5
        assert abs(y.std() / deviation - 1) < 0.07


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ["dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"])
def test_what_is_dropped_is_an_element_or_a_channel(name: str, inplace: bool) -> None:
    """As many of them as asked, and all of a channel or none of it."""
    import torch

    from tests.helpers.torch_functions import captured, exported

    rank = int(name[7]) if name[-1] == "d" else 2
    x = torch.ones(40, 50, *(3, 2, 2)[:rank])
    function = getattr(torch.nn.functional, name)
    for way in (exported, captured):
        y = way(lambda x: function(x.clone(), 0.3, True, inplace), x)(x).outputs[0].numpy()
        kept, lost = y.max(), y.min()
        assert set(y.flatten().tolist()) == {kept, lost}
        if "alpha" not in name:
            assert (abs(kept - 1 / 0.7) < 1e-6, lost) == (True, 0)
        channels = (y == kept).reshape(40, 50, -1)
        assert abs(channels.mean() - 0.7) < 6 * (0.21 / 2000) ** 0.5
        assert (channels == channels[:, :, :1]).all() == (name != "dropout")


def test_gumbel_softmax_and_distributions_are_converted() -> None:
    """Their checks of numbers, which a graph does not have, are left out."""
    import torch
    import torch.nn.functional as F
    from torch import distributions

    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.line(x)
            hot = F.gumbel_softmax(y, tau=0.5, hard=True)
            spread = distributions.Normal(y, F.softplus(y) + 0.1)
            return hot, spread.log_prob(y + 1), distributions.Categorical(logits=y).entropy()

    net, x = Net(), torch.randn(50, 3)
    checks = distributions.Distribution._validate_args
    found = from_torch(net, x, share=False)(x.numpy())
    assert ((found[0].numpy() > 0.5).sum(1) == 1).all()
    assert len(set(found[0].numpy().argmax(1).tolist())) > 1
    torch.testing.assert_close([torch.tensor(y.numpy()) for y in found[1:]], list(net(x)[1:]))
    assert distributions.Distribution._validate_args == checks


def test_native_dropout_gives_what_stays_too() -> None:
    import torch

    from tests.helpers.torch_functions import agree, captured

    x = torch.ones(100, 100)
    agree(lambda x: torch.native_dropout(x, 0.5, False), x)
    y, stays = (z.numpy() for z in captured(lambda x: torch.native_dropout(x, 0.25, True), x)(x).outputs)
    assert abs(stays.mean() - 0.75) < 0.02
    assert ((y != 0) == stays).all()
    assert abs(y.max() - 4 / 3) < 1e-6


@pytest.mark.parametrize("name", ["dropout", "dropout1d", "alpha_dropout", "feature_alpha_dropout"])
def test_what_is_not_said_is_pytorchs(name: str) -> None:
    """Some drop where nothing is said of training, and some do not."""
    import torch

    from lamina.convert import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(torch.nn.functional, name)(x, 0.5)

    x = torch.ones(50, 8, 4)
    drops = not torch.equal(Net()(x), x)
    assert drops == ("alpha" not in name)
    compiled = torch.compile(Net(), backend="lamina", fullgraph=True)
    assert torch.equal(compiled(x), x) != drops
    assert (from_torch(Net(), x)(x.numpy()).numpy() == x.numpy()).all() != drops


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("torch.bernoulli(x)", [0.0, 1.0, 0.0]),
        ("torch.bernoulli(x, 1.0)", [1.0, 1.0, 1.0]),
        ("torch.bernoulli(x, 0.0)", [0.0, 0.0, 0.0]),
        ("x.clone().bernoulli_(1.0)", [1.0, 1.0, 1.0]),
        ("x.clone().bernoulli_(0.0)", [0.0, 0.0, 0.0]),
        ("torch.full_like(x, 7.0).bernoulli_(x)", [0.0, 1.0, 0.0]),
    ],
)
def test_what_is_certain_is_drawn(text: str, wanted: list[float]) -> None:
    """In place the tensor's own numbers are no probabilities."""
    import torch

    from tests.helpers.torch_functions import exported

    x = torch.tensor([0.0, 1.0, 0.0])
    y = exported(eval("lambda x: " + text, {"torch": torch}), x)(x).outputs[0].numpy()
    assert y.tolist() == wanted


@pytest.mark.parametrize(
    ("p", "below"), [(0.0, "u < p"), (0, "p > u"), (1.0, "u >= p"), (-0.5, "u <= p"), (1.5, "not (u < p)")]
)
def test_layers_that_are_never_left_out_are_in_the_graph(p: float, below: str) -> None:
    """Layer drop whose probability is 0: the number that is drawn decides nothing."""
    import torch
    from torch import nn

    from lamina.convert import from_torch

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if eval(below, {"u": torch.rand([]), "p": p}):
                    continue
                x = torch.tanh(layer(x))
            return x

    net, x = Layers(), torch.randn(3, 4)
    found = from_torch(net, x)(x.numpy()).numpy()
    torch.testing.assert_close(torch.from_numpy(found), net(x).detach(), atol=1e-6, rtol=1e-5)


def test_masks_of_draws_beyond_a_bound_are_constants_and_others_are_drawn() -> None:
    import torch

    from tests.helpers.torch_functions import exported

    x = torch.zeros(1000)
    y = exported(lambda x: (torch.rand_like(x) < 1.0) + x, x)(x).outputs[0].numpy()
    assert (y == 1).all()
    y = exported(lambda x: (torch.rand_like(x) < 0.25) + x, x)(x).outputs[0].numpy()
    assert abs(y.mean() - 0.25) < 0.06


def test_draws_that_are_written_to_are_no_draws() -> None:
    import torch

    from tests.helpers.torch_functions import exported

    x = torch.zeros(1000)
    y = exported(lambda x: (torch.rand_like(x).mul_(4) < 1.0) + x, x)(x).outputs[0].numpy()
    assert abs(y.mean() - 0.25) < 0.06


def test_layers_are_left_out_at_random() -> None:
    """The number that decides is the one that is drawn: another graph draws it again."""
    import numpy as np
    import torch
    from torch import nn

    import lamina as lm
    from lamina import ops
    from lamina.convert import from_torch

    class Layers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if torch.rand([]) < 0.5 else 2 * x

    net = from_torch(Layers())
    lm.manual_seed(0)
    eager = [float(net(torch.ones(1)).numpy()[0]) for _ in range(16)]
    assert set(eager) == {1.0, 2.0}
    lm.manual_seed(0)
    jitted = lm.jit(net)
    assert [float(jitted(np.ones(1, np.float32)).numpy()[0]) for _ in range(16)] == eager
    lm.manual_seed(0)
    assert [1.0 + (ops.rand(()).item() >= 0.5) for _ in range(16)] == eager
