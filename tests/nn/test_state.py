"""State: what modules say of their own part of it, extra state, destinations; as torch.nn.Module has them."""

import copy
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

pytestmark = pytest.mark.feature("F112")


class Counted(nn.Module):
    """Counts its calls in Python, and keeps the number with the weights."""

    def __init__(self) -> None:
        self.linear = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        return self.linear(x)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


def test_extra_state_is_kept_and_given_back() -> None:
    net = nn.Sequential(Counted(), Counted())
    net[1].calls = 7
    state = net.state_dict()
    assert list(state) == [
        "0._extra_state", "0.linear.weight", "0.linear.bias", "1._extra_state", "1.linear.weight", "1.linear.bias",
    ]  # fmt: skip
    other = nn.Sequential(Counted(), Counted())
    assert other.load_state_dict(state) == ([], [])
    assert [m.calls for m in other] == [0, 7]
    del state["1._extra_state"]
    with pytest.raises(KeyError, match=r"missing 1\._extra_state"):
        other.load_state_dict(state)
    assert other.load_state_dict(state, strict=False).missing_keys == ["1._extra_state"]
    with pytest.raises(KeyError, match=r"unexpected _extra_state"):
        nn.Linear(2, 2).load_state_dict({**nn.Linear(2, 2).state_dict(), "_extra_state": 1})
    with pytest.raises(RuntimeError, match="Linear has no extra state: it defines no get_extra_state"):
        nn.Linear(2, 2).get_extra_state()
    with pytest.raises(RuntimeError, match="Linear takes no extra state: it defines no set_extra_state"):
        nn.Linear(2, 2).set_extra_state(1)


class Renamed(nn.Module):
    """Reads files in which its scale was called gamma, and rows of an older size."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(lm.ones(3))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if prefix + "gamma" in state_dict:
            state_dict[prefix + "scale"] = state_dict.pop(prefix + "gamma")[:3]
        super()._load_from_state_dict(state_dict, prefix, *rest)


class OnItsOwn(nn.Module):
    """Reads its table by itself, whatever its size is."""

    def __init__(self) -> None:
        self.table = nn.Parameter(lm.zeros(2))
        self.linear = nn.Linear(1, 1)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, extra: Any, errors: Any
    ) -> None:
        if (found := state_dict.get(prefix + "rows")) is None:
            missing.append(prefix + "rows")
        elif len(found) != 2:
            errors.append(f"{prefix}rows must be 2")
        else:
            self.table.copy_(found)


def test_a_module_reads_its_own_entries() -> None:
    net = nn.Sequential(Renamed(), nn.Linear(3, 1))
    given = {**net.state_dict(), "0.gamma": lm.tensor([1.0, 2.0, 3.0, 4.0])}
    del given["0.scale"]
    assert net.load_state_dict(given) == ([], [])
    assert net[0].scale.tolist() == [1, 2, 3]
    assert "0.gamma" in given  # the caller's dict stays

    net = nn.Sequential(OnItsOwn())
    linear = {"0.linear.weight": lm.tensor([[5.0]]), "0.linear.bias": lm.tensor([6.0])}
    assert net.load_state_dict({"0.rows": lm.tensor([3.0, 4.0]), **linear}) == ([], [])
    assert net[0].table.tolist() == [3, 4]
    assert net[0].linear.bias.tolist() == [6]
    with pytest.raises(KeyError, match=r"missing 0\.rows"):
        net.load_state_dict(linear)
    assert net.load_state_dict(linear, strict=False).missing_keys == ["0.rows"]
    with pytest.raises(lm.ShapeError, match=r"0\.rows must be 2"):
        net.load_state_dict({"0.rows": lm.zeros(5), **linear})


def test_a_module_saves_its_own_entries() -> None:
    class Squeezed(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "total"] = self.weight.sum()
            del destination[prefix + "bias"]

    assert list(nn.Sequential(Squeezed(2, 2)).state_dict()) == ["0.weight", "0.total"]


def test_a_destination_is_filled_and_returned() -> None:
    net, held = nn.Linear(2, 1), {"step": 3}
    found = net.state_dict(destination=held, prefix="net.", keep_vars=True)
    assert found is held
    assert list(held) == ["step", "net.weight", "net.bias"]
    assert held["net.weight"] is net.weight


def test_a_lazy_layer_is_not_saved_before_it_is_called(tmp_path: Any) -> None:
    net = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(RuntimeError, match=r"LazyLinear \(0\) has no parameters yet: call the network once"):
        lm.save_safetensors(net, tmp_path / "net.safetensors")
    assert not (tmp_path / "net.safetensors").exists()
    net(lm.zeros((1, 2)))
    assert list(net.state_dict()) == ["0.weight", "0.bias"]


def test_buffers_are_assigned() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.seen = nn.Buffer(lm.zeros(2))
            self.mask = nn.Buffer(lm.ones(2), persistent=False)

        def forward(self, x: Any) -> Any:
            self.seen += x
            return self.seen * self.mask

    net = Net()
    assert list(net.state_dict()) == ["seen"]
    assert [n for n, _ in net.named_buffers()] == ["seen", "mask"]
    assert not list(net.parameters())
    net(lm.ones(2))
    assert net.seen.tolist() == [1, 1]
    net.mask = nn.Buffer(lm.zeros(2))
    assert list(net.state_dict()) == ["seen", "mask"]
    assert net(lm.ones(2)).tolist() == [0, 0]


@pytest.mark.torch
def test_states_are_torchs() -> None:
    """Keys, and what each module is asked for, in torch's order."""
    torch = pytest.importorskip("torch")

    def asked(lib: Any) -> list[Any]:
        log: list[Any] = []

        class Part(lib.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = lib.Linear(2, 2)
                self.count = lib.Buffer(torch.zeros(1) if lib is torch.nn else lm.zeros(1))

            def get_extra_state(self) -> Any:
                return 5

            def set_extra_state(self, state: Any) -> None:
                log.append(("extra", state))

            def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
                log.append(prefix)
                super()._load_from_state_dict(state, prefix, *rest)

        net = lib.Sequential(Part(), Part())
        state = net.state_dict()
        net.load_state_dict(state)
        return [sorted(state), sorted(map(str, log))]

    assert asked(nn) == asked(torch.nn)


def test_training_writes_buffers_in_place() -> None:
    """forward updates buffers by methods that end in `_`, by parts and by numbers, as it does at once."""

    class Tracked(nn.Module):
        def __init__(self) -> None:
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", lm.zeros(3))
            self.register_buffer("queue", lm.zeros((4, 3)))
            self.register_buffer("calls", lm.tensor(0))

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            if self.training:
                self.mean.mul_(0.5).add_(y.detach().mean(0), alpha=0.5)
                self.queue.copy_(ops.cat([y.detach()[:1], self.queue[:-1]]))
                self.queue[3] = self.mean
                self.calls.add_(1)
                self.calls += 1
            return y + self.mean

    nn.manual_seed(0)
    net, twin = Tracked(), Tracked()
    twin.load_state_dict(net.state_dict())
    step = lm.train_step(net, ops.mse_loss, optim.SGD(lr=0.1), device="cpu")
    own = optim.SGD(twin.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x, goal = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
        loss = step(x, goal)
        value, grads = lm.value_and_grad(lambda n, x, y: ops.mse_loss(n(x), y))(
            twin, lm.tensor(x), lm.tensor(goal)
        )
        own.step(grads)
        np.testing.assert_allclose(loss.numpy(), value.numpy(), rtol=1e-5)
    assert net.calls.item() == 6
    for name, x in net.state_dict().items():
        np.testing.assert_allclose(
            x.numpy(), twin.state_dict()[name].numpy(), rtol=1e-4, atol=1e-6, err_msg=name
        )
    assert np.abs(net.queue.numpy()).min() > 0

    class Writes(nn.Linear):
        def forward(self, x: Any) -> Any:
            for p in self.parameters():
                p.mul_(0.9)
            return super().forward(x)

    with pytest.raises(TypeError, match="copy_: the parameters of the network that a training step trains"):
        lm.train_step(Writes(3, 3), ops.mse_loss, optim.SGD(lr=0.1), device="cpu")(x, goal)


def test_values_are_assigned_by_data() -> None:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.weight.data.fill_(0.5)
    layer.bias.data[1] = 3.0
    layer.bias.data = layer.bias.data * 2
    layer.weight.data.copy_(lm.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert layer.weight is weight
    assert weight.tolist() == [[1, 2], [3, 4]]
    assert layer.bias.tolist()[1] == 6
    with pytest.raises(
        lm.ShapeError, match=r"data: .* cannot be written over .*: net\.weight = nn\.Parameter"
    ):
        layer.bias.data = lm.zeros(3)
    with pytest.raises(TypeError, match=r"data: .* cannot be written over .*; convert the values"):
        layer.bias.data = lm.zeros(2, dtype="float64")
    slope = lm.grad(lambda x: (x * x.data).sum())(lm.tensor([3.0]))
    assert slope.tolist() == [3]


def test_what_a_hook_leaves_is_told_with_shapes_and_the_nearest_names() -> None:
    """As without a hook."""
    texts = []
    for hooked in (False, True):
        net = nn.Linear(2, 3)
        if hooked:
            net.register_load_state_dict_post_hook(lambda module, keys: None)
        state = net.state_dict()
        state["weigth"] = state.pop("weight")
        with pytest.raises(KeyError) as caught:
            net.load_state_dict(state)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "missing weight [3, 2] (nearest: weigth [3, 2])" in texts[0]


def test_a_state_that_a_compiled_function_computes_is_loaded_by_each_call() -> None:
    net, average = nn.Linear(3, 2), nn.Linear(3, 2)

    @lm.jit
    def follow(share: Any) -> Any:
        old, new = average.state_dict(), net.state_dict()
        average.load_state_dict({name: old[name] * (1 - share) + new[name] * share for name in old})
        return average.weight.sum()

    for share in (0.5, 0.25):
        net.weight.data.add_(1)
        expected = average.weight.numpy() * (1 - share) + net.weight.numpy() * share
        found = follow(lm.tensor(share))
        np.testing.assert_allclose(average.weight.numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(found.item(), expected.sum(), rtol=1e-5)


def test_a_state_of_tensors_is_loaded_by_each_call_of_a_compiled_function() -> None:
    """Hard updates of a target network, and a copy that is kept and put back."""
    net, target = nn.Linear(3, 2), nn.Linear(3, 2)

    @lm.jit
    def follow() -> Any:
        net.weight.data.mul_(2)
        target.load_state_dict(net.state_dict())
        kept = copy.deepcopy(net.state_dict())
        net.weight.data.zero_()
        net.load_state_dict(kept)
        return target.weight.sum()

    for _ in range(3):
        net.weight.data.add_(1)
        expected = net.weight.numpy() * 2
        found = follow()
        for held in (net, target):
            np.testing.assert_array_equal(held.weight.numpy(), expected)
        np.testing.assert_allclose(found.item(), expected.sum(), rtol=1e-5)


def test_a_state_is_loaded_past_a_derivative() -> None:
    net = nn.Linear(2, 1, bias=False)

    def loss(net: Any, x: Any) -> Any:
        net.load_state_dict({"weight": net.weight * 2})
        return ops.sum(net(x))

    x = lm.tensor([[3.0, 4.0]])
    for way in (lm.grad(loss), lm.jit(lm.grad(loss))):
        assert way(net, x)["weight"].tolist() == [[3, 4]]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_given_tensors_become_the_parameters_as_torchs(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = (m.Sequential(m.Linear(2, 3), m.BatchNorm1d(3)) for m in (nn, torch.nn))
    ours[0].bias.requires_grad_(False)
    theirs[0].bias.requires_grad_(False)
    x = np.random.default_rng(0).standard_normal((4, 2))
    arrays = {n: v.numpy() for n, v in ours.to("float64").state_dict().items()}
    kinds = {n: dtype if v.dtype == np.float64 else "int64" for n, v in arrays.items()}
    own = {n: lm.tensor(v.astype(kinds[n])) for n, v in arrays.items()}
    ours.to("float32")
    ours.load_state_dict(own, assign=True)
    theirs.load_state_dict({n: torch.tensor(v.astype(kinds[n])) for n, v in arrays.items()}, assign=True)
    for name, wanted in theirs.state_dict().items():
        assert str(wanted.dtype) == f"torch.{ours.state_dict()[name].dtype}", name
    flags = {n: p.requires_grad for n, p in theirs.named_parameters()}
    assert {n: p.requires_grad for n, p in ours.named_parameters()} == flags
    assert all(isinstance(p, nn.Parameter) for p in ours.parameters())
    found = ours(lm.tensor(x.astype(dtype))).numpy()
    tolerance = 2e-2 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(
        found, theirs(torch.tensor(x.astype(dtype))).detach().numpy(), rtol=tolerance, atol=tolerance
    )
    own["0.weight"].fill_(2.0)
    assert ours[0].weight.numpy().tolist() == [[2, 2]] * 3  # the tensor itself, not a copy


def test_assigned_parameters_stay_tied_and_frozen() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

    net, given = Tied(), nn.Parameter(np.ones((2, 2), np.float32))
    compiled = lm.jit(lambda x: net.first(x))
    compiled(lm.zeros((1, 2)))
    net.load_state_dict({"first.weight": given}, strict=False, assign=True)
    assert net.first.weight is net.second.weight is given
    bias = net.first.bias.numpy()
    np.testing.assert_allclose(compiled(lm.ones((1, 2))).numpy(), [2 + bias], rtol=1e-6)
    net.requires_grad_(False)
    other = nn.Linear(2, 2)
    net.first.load_state_dict(other.state_dict(), assign=True)
    assert other.weight.requires_grad
    assert not net.first.weight.requires_grad


def test_what_cannot_be_assigned_is_named() -> None:
    net, before = nn.Linear(2, 2), dict[str, Any]()
    before.update(net.state_dict())
    with pytest.raises(lm.DTypeError, match="weight is int64, and only floats are trained: freeze"):
        net.load_state_dict({"weight": np.ones((2, 2), int)}, strict=False, assign=True)
    with pytest.raises(lm.ShapeError, match=r"weight is \(2, 2\), got \(3, 2\)"):
        net.load_state_dict({"bias": np.ones(2), "weight": np.ones((3, 2))}, assign=True)

    @lm.jit
    def load(x: Any) -> Any:
        net.load_state_dict({"weight": x}, strict=False, assign=True)
        return x

    with pytest.raises(TypeError, match=r"Linear.load_state_dict: assign=True replaces parameters"):
        load(lm.ones((2, 2)))
    assert all(x is before[n] for n, x in net.state_dict().items())
