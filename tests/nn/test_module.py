"""Module: what it owns, how state goes in and out, modes, moving, functional calls."""

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.nn.module import evaluating


class Block(nn.Module):
    """Two layers, a scale of its own and a buffer; no call of super().__init__ is needed."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 4)
        self.layers = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.scale = nn.Parameter(np.ones(2, np.float32))
        self.register_buffer("seen", np.zeros((), np.float32))
        self.register_buffer("scratch", np.zeros(3, np.float32), persistent=False)
        self.note = "an ordinary attribute"

    def forward(self, x: Any) -> Any:
        self.seen = self.seen + 1.0
        return self.layers(self.first(x)) * self.scale


@pytest.fixture
def block() -> Block:
    nn.manual_seed(3)
    return Block()


X = np.arange(6, dtype=np.float32).reshape(2, 3) / 6


def test_names_and_order(block: Block) -> None:
    names = [name for name, _ in block.named_parameters()]
    assert names == ["scale", "first.weight", "first.bias", "layers.1.weight"]
    assert [n for n, _ in block.named_modules()] == ["", "first", "layers", "layers.0", "layers.1"]
    assert [n for n, _ in block.named_children()] == ["first", "layers"]
    assert list(block.children()) == [block.first, block.layers]
    assert [n for n, _ in block.named_buffers()] == ["seen", "scratch"]
    assert set(block.state_dict()) == {*names, "seen"}  # not the buffer that is not persistent
    assert len(list(block.parameters())) == 4
    assert all(isinstance(p, nn.Parameter) for p in block.parameters())
    assert next(block.buffers()).shape == ()


def test_a_shared_parameter_counts_once(block: Block) -> None:
    block.tied = block.first
    block.also = block.scale
    assert len(list(block.parameters())) == 4
    assert len(list(block.modules())) == 5


def test_attributes_move_between_kinds(block: Block) -> None:
    block.scale = "no longer a parameter"
    assert "scale" not in dict(block.named_parameters())
    block.note = nn.Linear(1, 1)
    assert "note.weight" in dict(block.named_parameters())
    del block.note
    with pytest.raises(AttributeError, match="Block has no attribute 'note'"):
        _ = block.note
    del block.first, block.seen
    assert set(block.state_dict()) == {"layers.1.weight"}
    with pytest.raises(ValueError, match=r"'a\.b' cannot be an attribute's name"):
        block.add_module("a.b", nn.ReLU())


@pytest.mark.feature("F098")
def test_train_eval_type_and_state(block: Block, tmp_path: Any) -> None:
    """Train and evaluate, type change, clear state, serialise."""
    assert block.training
    assert not any(m.training for m in block.eval().modules())
    assert all(m.training for m in block.train().modules())
    parameter = block.first.weight
    block.to("float16")
    assert block.first.weight is parameter
    assert {p.dtype.name for p in block.parameters()} == {"float16"}
    assert block.seen.dtype.name == "float16"
    block.to("cpu", "float32")
    block(X)
    assert block.seen.item() == 1.0
    block.seen = np.zeros((), np.float32)  # the state is cleared in place
    assert block.seen.item() == 0.0
    nn.save_safetensors(block, tmp_path / "block.safetensors")
    other = Block()
    other.load_state_dict(nn.load_safetensors(tmp_path / "block.safetensors"))
    np.testing.assert_array_equal(other(X).numpy(), block(X).numpy())


def test_to_keeps_integers(block: Block) -> None:
    block.register_buffer("count", np.zeros(1, np.int64))
    block.to(lm.float64)
    assert block.count.dtype is lm.int64
    assert block.scale.dtype is lm.float64
    with pytest.raises(ValueError, match="a dtype .'float32'. or a tensor, got 'floot'"):
        block.to("floot")


def test_apply_visits_children_first(block: Block) -> None:
    visited: list[str] = []
    assert block.apply(lambda m: visited.append(type(m).__name__)) is block
    assert visited == ["Linear", "ReLU", "Linear", "Sequential", "Block"]


def test_repr_nests() -> None:
    net = nn.Sequential({"conv": nn.Conv2d(1, 2, 3), "inner": nn.Sequential(nn.ReLU(), nn.Dropout(0.25))})
    assert repr(net) == (
        "Sequential(\n"
        "  (conv): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))\n"
        "  (inner): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): Dropout(p=0.25)\n"
        "  )\n"
        ")"
    )


def test_a_module_without_forward_says_so() -> None:
    with pytest.raises(NotImplementedError, match="ModuleList defines no forward"):
        nn.ModuleList([nn.ReLU()])(X)


def test_containers() -> None:
    layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
    layers.append(nn.Linear(3, 2))
    assert len(layers) == 3
    assert [type(m).__name__ for m in layers] == ["Linear", "ReLU", "Linear"]
    assert layers[-1].out_features == 2
    assert len(layers[:2]) == 2
    assert set(layers.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


# ---- state


def test_state_dict_holds_the_tensors_themselves(block: Block) -> None:
    assert block.state_dict()["first.weight"] is block.first.weight


@pytest.mark.parametrize("kind", ["numpy", "tensor", pytest.param("torch", marks=pytest.mark.torch)])
def test_load_takes_arrays_of_any_library(block: Block, kind: str) -> None:
    values = {k: np.random.default_rng(1).random(v.shape, np.float32) for k, v in block.state_dict().items()}
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given: dict[str, Any] = {k: torch.nn.Parameter(torch.from_numpy(v)) for k, v in values.items()}
    else:
        given = values if kind == "numpy" else {k: lm.tensor(v) for k, v in values.items()}
    before = block.first.weight
    assert block.load_state_dict(given) == ([], [])
    assert block.first.weight is before
    for name, value in values.items():
        np.testing.assert_array_equal(block.state_dict()[name].numpy(), value)


def test_load_converts_dtypes(block: Block) -> None:
    state = {k: v.numpy().astype(np.float64) + 1 for k, v in block.state_dict().items()}
    block.load_state_dict(state)
    assert block.scale.dtype is lm.float32
    np.testing.assert_array_equal(block.scale.numpy(), [2, 2])


def test_load_names_everything_that_does_not_fit(block: Block) -> None:
    state: dict[str, Any] = {k: v.numpy() + 1 for k, v in block.state_dict().items()}
    first = block.first.weight.numpy().copy()
    state["more"] = state.pop("scale")
    with pytest.raises(
        KeyError, match=r"Block.load_state_dict: missing scale \[2\]; unexpected more \[2\]\. Use strict=F"
    ):
        block.load_state_dict(state)
    state["first.bias"] = np.zeros(5, np.float32)
    with pytest.raises(lm.ShapeError, match=r"first.bias is \(4,\), got \(5,\)"):
        block.load_state_dict(state, strict=False)
    np.testing.assert_array_equal(block.first.weight.numpy(), first)  # nothing was written
    del state["first.bias"]
    assert block.load_state_dict(state, strict=False) == (["scale", "first.bias"], ["more"])
    np.testing.assert_array_equal(block.first.weight.numpy(), first + 1)
    with pytest.raises(TypeError, match="load_state_dict: first.bias: str is not an array"):
        block.load_state_dict({**block.state_dict(), "first.bias": "text"})


def test_bfloat16_weights_go_through_a_file(tmp_path: Any) -> None:
    net = nn.Linear(3, 2).to("bfloat16")
    nn.save_safetensors(net, tmp_path / "half.safetensors")
    loaded = nn.load_safetensors(tmp_path / "half.safetensors")
    assert loaded["weight"].dtype is lm.bfloat16
    np.testing.assert_array_equal(loaded["weight"].numpy(), net.weight.numpy())


# ---- other parameters


@pytest.mark.feature("F108")
def test_build_move_init_from_sample_forward_backward_update(block: Block) -> None:
    """A network is built, moved, its shapes inferred from a sample; run forward and backward, and updated."""
    block.to("cpu")
    sample = lm.trace(
        lambda x, seen: nn.functional_call(block, {"seen": seen}, x), lm.Spec((5, 3), lm.float32), block.seen
    )
    assert sample.outputs[0].shape == (5, 2)
    names = [n for n, _ in block.named_parameters()]

    def loss(*values: Any) -> Any:
        states = dict(zip([*names, "seen"], values, strict=True))
        return ops.mean(ops.square(nn.functional_call(block, states, X)))

    values = [*block.parameters(), lm.zeros(())]
    before, grads = lm.value_and_grad(loss, range(len(names)))(*values)
    for parameter, grad in zip(block.parameters(), grads, strict=True):
        parameter.copy_(parameter - 0.1 * grad)
    after = loss(*block.parameters(), lm.zeros(()))
    assert after.item() < before.item()


def test_functional_call_of_what_is_no_module_or_no_mapping(block: Block) -> None:
    with pytest.raises(TypeError, match=r"functional_call: module must be an instance of Module, got array"):
        nn.functional_call(X, {}, X)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="functional_call: values must be a mapping, such as a dict or a sequence of"
    ):
        nn.functional_call(block, [X], X)  # type: ignore[arg-type]


def test_functional_call_leaves_the_module_alone(block: Block) -> None:
    zeros = {n: lm.zeros(p.shape) for n, p in block.named_parameters()}
    outputs = nn.functional_call(block, {**zeros, "seen": lm.zeros(())}, X)
    np.testing.assert_array_equal(outputs.numpy(), np.zeros((2, 2)))
    assert block.seen.item() == 0.0
    assert np.abs(block(X).numpy()).max() > 0
    with pytest.raises(KeyError, match="Block has no parameter or buffer second"):
        nn.functional_call(block, {"second": lm.zeros(1)}, X)


def test_functional_call_as_torchs(block: Block) -> None:
    """Dicts, named arguments, shared parameters by any name, buffers that are written."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return self.second(self.norm(self.first(x))) * scale

    net, x = Tied(), np.arange(12, dtype=np.float32).reshape(4, 3) % 5
    weight = lm.tensor(np.eye(3, dtype=np.float32) * 2)
    state = {name: b.clone() for name, b in net.named_buffers()}
    expected = nn.functional_call(net, {"first.weight": weight}, x)
    net.load_state_dict(state, strict=False)
    found = nn.functional_call(net, ({"second.weight": weight}, state), (), {"x": x, "scale": 2.0})
    np.testing.assert_allclose(found.numpy(), 2 * expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(state["norm.running_mean"].numpy(), 0.2 * x.mean(0), rtol=1e-6)
    assert (state["norm.num_batches_tracked"].item(), net.norm.num_batches_tracked.item()) == (1, 0)
    nn.functional_call(net, dict(net.named_parameters()) | state, x, strict=True)
    with pytest.raises(KeyError, match=r"values have no norm\.weight, norm\.bias"):
        nn.functional_call(net, {"first.weight": weight} | state, x, strict=True)
    with pytest.raises(ValueError, match=r"first\.weight is in two of the dicts"):
        nn.functional_call(net, [{"first.weight": weight}, {"first.weight": weight}], x)


def test_state_written_in_a_trace_is_given_back(block: Block) -> None:
    def program(seen: Any, x: Any) -> Any:
        with nn.substitute(block, {"seen": seen}) as states:
            y = block(x)
        return y, states[id(block.state_dict()["seen"])]

    graph = lm.trace(program, block.seen, X)
    _, seen = graph(lm.tensor(np.float32(4)), X)
    assert seen.item() == 5.0
    assert block.seen.item() == 0.0


def test_state_that_takes_no_part_in_a_trace_is_an_error() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            self.register_buffer("last", np.zeros((), np.float32))

        def forward(self, x: Any) -> Any:
            self.last = ops.mean(x)
            return x

    with pytest.raises(TypeError, match=r"nn\.functional_call, or switch it to eval"):
        lm.trace(Mean(), X)


@pytest.mark.feature("F109")
def test_branches_several_inputs_and_outputs_composition_and_files(tmp_path: Any) -> None:
    class Join(nn.Module):
        def __init__(self) -> None:
            self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, a: Any, b: Any) -> Any:
            left, right = self.left(a), self.right(b)
            return left + right, ops.cat([left, right], 1)

    nn.manual_seed(1)
    join, head = Join(), nn.Linear(4, 1)
    a, b = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    inner = lm.trace(join, a, b)
    outer = lm.trace(lambda a, b: head(inner(a, b)[1]), a, b)  # a graph is called as an op of another
    total, both = join(a, b)
    np.testing.assert_allclose(outer(a, b)[0].numpy(), head(both).numpy(), rtol=1e-6)
    np.testing.assert_allclose(inner(a, b)[0].numpy(), total.numpy(), rtol=1e-6)
    lm.graph.save(outer, tmp_path / "outer")
    loaded = lm.graph.load(tmp_path / "outer")
    assert str(loaded) == str(outer)
    np.testing.assert_array_equal(loaded(a, b)[0].numpy(), outer(a, b)[0].numpy())


# ---- copies and pickles


def _networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    nn.manual_seed(0)
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    return {
        "lenet": (nn.LeNet(1, 10), (2, 1, 28, 28)),
        "norms": (nn.Sequential(nn.BatchNorm2d(3), nn.GELU(), nn.Dropout(0.5), nn.Flatten()), (2, 3, 4, 4)),
        "gru": (nn.GRU(4, 3, num_layers=2, bidirectional=True), (5, 2, 4)),
        "encoder": (nn.TransformerEncoderLayer(8, 2, 16), (5, 2, 8)),
        "tied": (tied, (3, 4)),
    }


def _first(outputs: Any) -> np.ndarray[Any, Any]:
    return np.asarray(outputs[0] if isinstance(outputs, tuple) else outputs)


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("name", sorted(_networks()))
def test_copies_own_their_parameters(name: str, how: Any) -> None:
    net, shape = _networks()[name]
    net.eval()
    other = how(net)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = _first(net(x)).copy()
    assert [n for n, _ in other.named_parameters()] == [n for n, _ in net.named_parameters()]
    for a, b in zip(other.state_dict().values(), net.state_dict().values(), strict=True):
        assert a is not b
        assert type(a) is type(b)
        assert a.buffer.pointer != b.buffer.pointer
    assert not other.training
    np.testing.assert_array_equal(_first(other(x)), expected)
    for p in net.parameters():
        p.copy_(np.zeros(p.shape))
    np.testing.assert_array_equal(_first(other(x)), expected)


def test_a_copy_draws_from_the_generator_that_manual_seed_seeds() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.generators() == net.generators()


def test_parameters_over_read_only_memory_are_copies() -> None:
    data = bytes(8)
    p = nn.Parameter(np.frombuffer(data, np.float32))
    p.copy_([1, 2])
    net = nn.Module()
    net.register_buffer("b", np.frombuffer(data, np.float32))
    net.b = [3, 4]
    assert (p.tolist(), net.b.tolist(), data) == ([1, 2], [3, 4], bytes(8))


@pytest.mark.parametrize("compiled", [False, True])
def test_arithmetic_that_is_assigned_writes_the_parameter(compiled: bool) -> None:
    net = nn.Linear(2, 1)
    held, plain = net.weight, lm.ones(2)
    other = plain

    def update(by: Any) -> None:
        for p in net.parameters():
            p *= 0.0
            p += by
            p -= 1.0
            p /= 2.0
            p **= 2.0

    (lm.jit(update) if compiled else update)(lm.tensor(7.0))
    net.weight *= 2.0
    other += 1.0
    assert net.weight is held
    assert (held.tolist(), net.bias.tolist(), plain.tolist()) == ([[18, 18]], [9], [1, 1])
    with pytest.raises(lm.ShapeError, match=r"\(3, 2\)|\[3,2\]"):
        held += lm.ones(3, 2)


def test_modes_in_a_block_are_this_contexts_own() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    seen: list[bool] = []
    with evaluating(net):
        assert not any(m.training for m in net.modules())
        other = threading.Thread(target=lambda: seen.extend(m.training for m in net.modules()))
        other.start()
        other.join()
    assert seen == [True] * 3
    assert all(m.training for m in net.modules())


def test_notebooks_see_the_modules_as_folds() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU()))
    found = net._repr_html_()
    assert found.startswith("<details open")
    assert "0: <b>Linear</b>(in_features=3" in found
    assert "<small>16 parameters</small>" in found
    assert found.count("<details") == found.count("</details>") == 2


def test_parts_by_their_path() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))
    assert net.get_submodule("") is net
    assert net.get_submodule("1.0") is net[1][0]
    assert net.get_parameter("1.0.weight").shape == (3,)
    assert net.get_buffer("1.0.running_mean").shape == (3,)
    for ask, message in (
        (lambda: net.get_submodule("1.x"), "1 has no module 'x'; its modules: 0"),
        (lambda: net.get_submodule("y"), "Sequential has no module 'y'; its modules: 0, 1"),
        (lambda: net.get_parameter("1.0.running_mean"), "has no parameter '1.0.running_mean'"),
        (lambda: net.get_buffer("0.weight"), "has no buffer '0.weight'"),
    ):
        with pytest.raises(AttributeError, match=message):
            ask()


def test_what_is_the_modules_own() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3))
    assert list(net.parameters(recurse=False)) == list(net.buffers(recurse=False)) == []
    own = dict(net[0].named_parameters("norm", recurse=False))
    assert list(own) == ["norm.weight", "norm.bias"]
    assert [k for k, _ in net.named_buffers("all")] == [
        "all.0.running_mean", "all.0.running_var", "all.0.num_batches_tracked",
    ]  # fmt: skip


def test_types_by_name() -> None:
    net = nn.BatchNorm1d(3)
    for change, dtype in (
        (net.double, lm.float64), (net.half, lm.float16), (net.bfloat16, lm.bfloat16), (net.float, lm.float32),
    ):  # fmt: skip
        assert change() is net
        assert net.weight.dtype is net.running_mean.dtype is dtype
        assert net.num_batches_tracked.dtype is lm.int64
    assert net.cpu() is net


def test_zero_grad_says_that_there_is_nothing_to_zero() -> None:
    with pytest.raises(
        TypeError, match=r"Linear.zero_grad: parameters hold no gradients .* leave the line out"
    ):
        nn.Linear(2, 2).zero_grad()


def test_what_replaces_a_module_or_parameter_stands_where_that_stood() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    for layer in (net[0], net[2]):
        layer.weight.fill_(1)
        layer.bias.zero_()
    x = lm.tensor([[-1.0, 2.0], [-3.0, 1.0]])
    expected = net(x).tolist()

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    first = net[0]
    assert isinstance(first, nn.Linear)
    setattr(net, "0", Wrapped(first))
    assert [n for n, _ in net.named_children()] == ["0", "1", "2"]
    assert net(x).tolist() == expected == [[3, 3], [0, 0]]
    first.weight = nn.Parameter(lm.ones(3, 2))
    assert list(net.state_dict()) == ["0.inner.weight", "0.inner.bias", "2.weight", "2.bias"]


def test_a_tensor_cannot_take_a_parameters_or_modules_place() -> None:
    net = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(TypeError, match=r"Linear\.weight is a parameter and cannot become a tensor.*copy_"):
        net[0].weight = net[0].weight * 2
    with pytest.raises(TypeError, match=r"Sequential\.0 is a module and cannot become a tensor"):
        setattr(net, "0", lm.ones(2))
    net[0].bias = None
    assert [n for n, _ in net.named_parameters()] == ["0.weight"]


# ---- shared modules, absent buffers, parts of the state


def test_a_shared_module_stands_under_all_its_names_in_the_state() -> None:
    layer = nn.Linear(2, 2)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [n for n, _ in net.named_modules()] == ["", "0", "1"]
    assert [n for n, _ in net.named_modules(remove_duplicate=False)] == ["", "0", "1", "2"]
    assert len([*net.named_parameters()]) == 2
    assert len([*net.named_parameters(remove_duplicate=False)]) == 4
    net.load_state_dict({n: np.ones(x.shape, np.float32) for n, x in net.state_dict().items()})
    net.load_state_dict({"2.weight": np.zeros((2, 2), np.float32), "0.bias": np.zeros(2, np.float32)})
    assert net[0].weight.sum().item() == 0
    with pytest.raises(KeyError, match=r"missing 0.bias \[2\].*2.bias \[2\]"):
        net.load_state_dict({"0.weight": np.ones((2, 2), np.float32)})
    layer.itself = layer  # a module within itself has no end of names
    assert len(net.state_dict()) == 4


def test_shared_buffers_have_all_their_names_or_one() -> None:
    norm = nn.BatchNorm1d(2)
    net = nn.ModuleList([norm, norm])
    assert len([*net.named_buffers()]) == 3
    assert len([*net.named_buffers(remove_duplicate=False)]) == 6


class Caching(nn.Module):
    def __init__(self) -> None:
        self.register_buffer("mask", None)

    def forward(self, x: Any) -> Any:
        if self.mask is None:
            self.mask = 3 * lm.ones(2)
        return x * self.mask


def test_a_buffer_may_be_absent_and_come_later() -> None:
    net = Caching()
    assert net.mask is None
    assert not net.state_dict()
    assert not [*net.buffers()]
    assert net.to("float64") is net
    with pytest.raises(TypeError, match="Caching.mask is a buffer without a tensor, .* call the module once"):
        lm.jit(net)(lm.ones(2))
    compiled = lm.jit(net)
    assert net(lm.ones(2)).tolist() == compiled(lm.ones(2)).tolist() == [3, 3]
    assert list(net.state_dict()) == ["mask"]
    net.mask = None
    assert not net.state_dict()
    net.mask = np.full(2, 5, np.float32)
    assert compiled(lm.ones(2)).tolist() == [5, 5]


def test_names_with_a_prefix(block: Block) -> None:
    assert list(block.state_dict(prefix="net.")) == [f"net.{name}" for name in block.state_dict()]


def test_a_module_is_put_in_the_place_of_another(block: Block) -> None:
    block.set_submodule("layers.0", nn.Tanh())
    assert isinstance(block.layers[0], nn.Tanh)
    with pytest.raises(AttributeError, match="Sequential has no module '7'; its modules: 0, 1"):
        block.set_submodule("layers.7", nn.Tanh())


def test_attributes_of_a_users_own_have_any_names() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            self.layer, self._hooks, self._computed, self._paths = nn.Linear(2, 2), [], {}, ["a"]
            self._hooks.append(self.layer.register_forward_hook(self.keep))
            self._entries = 3

        def keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
            self._computed["layer"] = output

        def forward(self, x: Any) -> Any:
            self.layer(x)
            return self._computed["layer"]

    net = Watched()
    np.testing.assert_array_equal(net(X[:, :2]).numpy(), net.layer(X[:, :2]).numpy())
    net.load_state_dict(net.state_dict())
    np.testing.assert_allclose(lm.jit(net)(X[:, :2]).numpy(), net(X[:, :2]).numpy(), rtol=1e-6)


def test_methods_of_torch_that_are_something_else_say_what(block: Block) -> None:
    with pytest.raises(AttributeError, match="'register_full_backward_hook'; .* by lamina.custom_vjp"):
        block.register_full_backward_hook(lambda *given: None)


def test_forward_gets_tensors_in_place_of_arrays() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter(lm.ones(1))

        def forward(self, x: Any, *, mask: Any) -> Any:
            return self.scale * x.unsqueeze(0).std(-1)[:, mask]

    net, x, mask = Spread(), np.arange(6.0).reshape(2, 3), np.array([True, False])
    wanted = [[x[0].std(ddof=1)]]
    assert net(x, mask=mask).tolist() == wanted
    assert lm.jit(lambda x: net(x, mask=mask))(x).tolist() == wanted
    slope = lm.grad(lambda net: ops.sum(net(x, mask=mask)))(net)
    assert slope["scale"].tolist() == wanted[0]


def test_names_of_torch_for_what_has_another_name() -> None:
    with pytest.raises(AttributeError, match="Linear has no attribute 'register_module'; it is add_module"):
        nn.Linear(2, 2).register_module("a", nn.ReLU())


def test_states_of_several_networks_are_stacked() -> None:
    nets = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval() for _ in range(3)]
    parameters, buffers = nn.stack_module_state(nets)
    assert list(parameters) == [n for n, _ in nets[0].named_parameters()]
    assert parameters["0.weight"].shape == (3, 4, 3)
    assert buffers["1.running_mean"].shape == (3, 4)
    x = lm.ones((2, 3))

    def one(parameters: Any, buffers: Any, x: Any) -> Any:
        return nn.functional_call(nets[0], (parameters, buffers), (x,))

    found = lm.vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
    for net, y in zip(nets, found, strict=True):
        np.testing.assert_allclose(y.numpy(), net(x).numpy(), rtol=1e-6)


def test_stacked_parameters_are_trained() -> None:
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)) for _ in range(2)]
    for net in nets:
        net[0].requires_grad_(False)
    parameters, _ = nn.stack_module_state(nets)
    assert [p.requires_grad for p in parameters.values()] == [False, False, True, True]

    def loss(parameters: Any) -> Any:
        return lm.vmap(lambda p: nn.functional_call(nets[0], p, (lm.ones((2, 3)),)).square().mean())(
            parameters
        ).sum()

    before = {n: p.numpy().copy() for n, p in parameters.items()}
    grads = lm.grad(loss)(parameters)
    trained = [parameters[n] for n in ("1.weight", "1.bias")]
    optim.SGD(trained, lr=0.1).step([grads["1.weight"], grads["1.bias"]])
    for name, p in parameters.items():
        wanted = before[name] - 0.1 * grads[name].numpy() if name.startswith("1") else before[name]
        np.testing.assert_allclose(p.numpy(), wanted, rtol=1e-6)
    nets[1].requires_grad_(True)
    with pytest.raises(ValueError, match=r"0\.weight is frozen in some of the networks"):
        nn.stack_module_state(nets)


def test_states_of_networks_that_differ_are_not_stacked() -> None:
    for nets, error in (
        ([], "needs at least one network"),
        ([nn.Linear(2, 3), nn.ReLU()], "of one class"),
        ([nn.Linear(2, 3), nn.Linear(2, 3).eval()], "of one class, all in training mode"),
        ([nn.Linear(2, 3), nn.Linear(2, 4)], r"weight is .*in network 1 and .* in the first one"),
    ):
        with pytest.raises(ValueError, match=error):
            nn.stack_module_state(nets)  # type: ignore[arg-type]


def test_values_of_what_is_shared() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    x, eye = lm.ones((1, 2)), lm.eye(2)
    for values in ({"0.weight": eye}, {"1.weight": eye}, {"0.weight": eye, "1.weight": eye}):
        assert nn.functional_call(net, values, x, tie_weights=True).tolist() == [[1, 1]]
    with pytest.raises(ValueError, match=r"0\.weight, 1\.weight are one tensor, which has one value"):
        nn.functional_call(net, {"0.weight": eye, "1.weight": 2 * eye}, x)
    with pytest.raises(ValueError, match="with tie_weights=True"):
        nn.functional_call(net, {"0.weight": eye}, x, tie_weights=False)
    alone = nn.Linear(2, 2, bias=False)
    assert nn.functional_call(alone, {"weight": eye}, x, tie_weights=False).tolist() == [[1, 1]]


PLACED: dict[str, Callable[..., Any]] = {
    "AdaptiveLogSoftmaxWithLoss": partial(nn.AdaptiveLogSoftmaxWithLoss, 4, 6, [2]),
    "BatchNorm2d": partial(nn.BatchNorm2d, 3),
    "Bilinear": partial(nn.Bilinear, 2, 3, 4),
    "Conv2d": partial(nn.Conv2d, 2, 3, 3),
    "ConvTranspose1d": partial(nn.ConvTranspose1d, 2, 3, 3, padding_mode="zeros"),
    "Embedding": partial(nn.Embedding, 5, 3),
    "EmbeddingBag": partial(nn.EmbeddingBag, 5, 3),
    "GRU": partial(nn.GRU, 2, 3),
    "GRUCell": partial(nn.GRUCell, 2, 3),
    "GroupNorm": partial(nn.GroupNorm, 2, 4),
    "InstanceNorm1d": partial(nn.InstanceNorm1d, 3, affine=True),
    "LSTM": partial(nn.LSTM, 2, 3),
    "LSTMCell": partial(nn.LSTMCell, 2, 3),
    "LayerNorm": partial(nn.LayerNorm, 3),
    "Linear": partial(nn.Linear, 2, 3),
    "LinearCrossEntropyLoss": partial(nn.LinearCrossEntropyLoss, 2, 3),
    "MultiheadAttention": partial(nn.MultiheadAttention, 4, 2),
    "PReLU": nn.PReLU,
    "RMSNorm": partial(nn.RMSNorm, 3),
    "RNN": partial(nn.RNN, 2, 3),
    "RNNCell": partial(nn.RNNCell, 2, 3),
    "SyncBatchNorm": partial(nn.SyncBatchNorm, 3),
    "Transformer": partial(nn.Transformer, 4, 2, 1, 1, 8),
    "TransformerDecoderLayer": partial(nn.TransformerDecoderLayer, 4, 2, 8),
    "TransformerEncoderLayer": partial(nn.TransformerEncoderLayer, 4, 2, 8),
}


@pytest.mark.parametrize("name", PLACED)
def test_layers_are_made_on_a_device_and_in_a_dtype(name: str) -> None:
    lm.manual_seed(0)
    plain = PLACED[name]()
    lm.manual_seed(0)
    layer = PLACED[name](device="cpu", dtype=lm.bfloat16)
    held = layer.state_dict()
    assert {x.dtype for x in held.values() if x.dtype.is_float} == {lm.bfloat16}
    assert all(bool((x == held[n]).all()) for n, x in plain.to("bfloat16").state_dict().items())
    assert {x.dtype for x in PLACED[name](device=lm.device("cpu"), dtype=None).parameters()} == {lm.float32}


@pytest.mark.torch
def test_layers_that_torch_makes_on_a_device_are_those() -> None:
    torch = pytest.importorskip("torch")
    for name, theirs in vars(torch.nn).items():
        ours = getattr(nn, name, None) if inspect.isclass(theirs) and not name.startswith("Lazy") else None
        if ours is not None and {"device", "dtype"} <= set(inspect.signature(theirs).parameters):
            assert {"device", "dtype"} <= set(inspect.signature(ours).parameters), name


RESET: dict[str, Callable[..., Any]] = {
    name: PLACED[name]
    for name in (
        "BatchNorm2d",
        "Bilinear",
        "Conv2d",
        "ConvTranspose1d",
        "Embedding",
        "GRU",
        "GRUCell",
        "LayerNorm",
        "Linear",
    )
}


@pytest.mark.parametrize("name", RESET)
def test_parameters_are_reset(name: str) -> None:
    lm.manual_seed(0)
    layer = RESET[name]()
    values = {n: p.clone() for n, p in layer.named_parameters()}
    for p in layer.parameters():
        p.fill_(7)
    lm.manual_seed(0)
    layer.reset_parameters()
    assert all((p == values[n]).all() for n, p in layer.named_parameters())


def test_a_layer_begins_as_its_own_class_says() -> None:
    class Ones(nn.Linear):
        def reset_parameters(self) -> None:
            nn.init.ones_(self.weight)

    assert Ones(2, 1, bias=False).weight.tolist() == [[1.0, 1.0]]


def test_state_is_registered_by_the_names_of_torch() -> None:
    net = nn.Module()
    net.register_buffer(name="kept", tensor=lm.ones(2))
    net.register_parameter(name="trained", param=nn.Parameter(data=lm.ones(2)))
    assert list(net.state_dict()) == ["trained", "kept"]


def test_what_a_module_holds_is_listed_and_suggested() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert {"weight", "bias", "forward"} <= set(dir(net[0]))
    assert "running_mean" in dir(net[1])
    assert "0" not in dir(net)  # no name of an attribute
    with pytest.raises(AttributeError, match="Linear has no attribute 'wieght'") as caught:
        _ = net[0].wieght
    assert (caught.value.name, caught.value.obj) == (
        "wieght",
        net[0],
    )  # what a traceback's suggestion is made of
