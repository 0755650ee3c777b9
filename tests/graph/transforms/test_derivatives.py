"""grad, value_and_grad, vjp, jvp, hvp: against finite differences and PyTorch, over trees, modules and states."""

import re
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.ops.core import REGISTRY, Sample, call
from lamina.ops.primitives.collective import Collective
from lamina.ops.primitives.fused import Fused
from lamina.spec import float64

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape)


def numeric(f: Any, x: np.ndarray[Any, Any], step: float = 1e-6) -> np.ndarray[Any, Any]:
    found = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        found[i] = (f(up) - f(down)) / (2 * step)
    return found


def close(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance)


def network() -> nn.Module:
    lm.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).to(
        dtype="float64"
    )


# ---- arguments and results


@pytest.mark.feature("B045")
def test_trees_of_arguments_give_trees_of_gradients() -> None:
    params = {"w": array(3, 2), "parts": [array(2), (array(2), None)]}
    x = array(4, 3)

    def loss(p: Any, x: Any, *, power: int) -> Any:
        y = x @ p["w"] + p["parts"][0] * p["parts"][1][0]
        return ops.sum(y**power)

    found = lm.grad(loss)(params, x, power=2)
    assert found["parts"][1][1] is None
    wanted = numeric(lambda w: loss({**params, "w": lm.tensor(w)}, x, power=2).item(), params["w"])  # type: ignore[arg-type]
    close(found["w"], wanted, 1e-5)
    assert [g.shape for g in (found["w"], found["parts"][0], found["parts"][1][0])] == [(3, 2), (2,), (2,)]


def test_argnums_and_aux() -> None:
    def f(a: Any, b: Any, c: str) -> Any:
        return ops.sum(a * b * b), {"name": c, "sum": a + b}

    a, b = array(3), array(3)
    (value, aux), (db, da) = lm.value_and_grad(f, argnums=(1, 0), has_aux=True)(a, b, "x")
    close(value, (a * b * b).sum())
    close(da, b * b)
    close(db, 2 * a * b)
    assert aux["name"] == "x"
    assert isinstance(aux["sum"], lm.Tensor)
    close(aux["sum"], a + b)
    last, _ = lm.grad(f, -2, has_aux=True)(a, b, "x")
    close(last, db)


def test_numbers_and_integers_beside() -> None:
    assert lm.grad(lambda x: x * x)(3.0).item() == 6
    labels = np.array([0, 2])
    x = array(2, 3)
    found = lm.grad(lambda x, y: ops.cross_entropy(x, y))(x, labels)
    soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    close(found, (soft - np.eye(3)[labels]) / 2)


def test_a_program_may_look_at_its_numbers() -> None:
    """Branches, Python numbers and NumPy on values and on what is closed over: it runs at once."""
    scale = lm.tensor(np.array([2.0]))
    seen = []

    def f(x: Any) -> Any:
        y = x * float(scale[0])
        seen.append(f"{ops.sum(y):.3f}")
        while ops.sum(y) < 10:
            y = y * 2
        return ops.sum(y) if y.numpy()[0] > 0 else -ops.sum(y)

    x = np.array([0.5, 1.0])
    assert lm.grad(f)(x).tolist() == [8, 8]
    assert seen == ["3.000"]
    with pytest.raises(TypeError, match="has no numbers yet"):
        lm.jit(lm.grad(f))(x)


def test_a_number_has_no_gradient() -> None:
    for f in (lambda x: float(ops.sum(x)), lambda x: ops.sum(x).numpy(), lambda x: ops.sum(x).item()):
        with pytest.raises(
            TypeError, match="grad: fn must give a tensor, got .*does not remember what it was made of"
        ):
            lm.grad(f)(np.array([1.0, 2.0]))
    assert lm.grad(lambda x: lm.tensor(3.0))(np.array([1.0])).tolist() == [
        0
    ]  # a tensor that does not depend on x


def test_what_escapes_is_still_a_number() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 3)
        return ops.sum(kept[0])

    lm.grad(f)(np.array([1.0, 2.0]))
    assert kept[0].tolist() == [3, 6]
    assert (kept[0] + 1).tolist() == [4, 7]


# ---- modules and states


@pytest.mark.parametrize("compiled", [False, True])
def test_states_of_modules_go_on_as_in_training(compiled: bool) -> None:
    """Running statistics and random states move as in train_step, gradients are those of the parameters."""
    x, y = array(8, 3), array(8, 2)
    net, twin = network(), network()

    def loss(net: Any, x: Any, y: Any) -> Any:
        return ops.mse_loss(net(x), y)

    both = lm.value_and_grad(loss)
    both = lm.jit(both) if compiled else both
    lm.manual_seed(5)
    step = lm.train_step(twin, ops.mse_loss, lm.optim.SGD(lr=0.1), device="cpu", precision="fp64")
    wanted = [step(x, y).item() for _ in range(3)]
    lm.manual_seed(5)
    for w in wanted:
        value, grads = both(net, x, y)
        close(value, w)
        for name, p in net.named_parameters():
            p.copy_(p - 0.1 * grads[name])
    for (name, a), b in zip(net.state_dict().items(), twin.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-9, err_msg=name)
    assert nn.random.default_generator.counter > 0


def test_parameters_that_are_closed_over() -> None:
    net = network()
    x, y = array(8, 3), array(8, 2)
    before = net[1].running_mean.numpy().copy()

    def loss(x: Any) -> Any:
        value = ops.mse_loss(net(x), y)
        return value, lm.gradients(value, list(net.parameters()))

    slope, found = lm.grad(loss, has_aux=True)(x)
    assert slope.shape == x.shape
    assert [g.shape for g in found] == [p.shape for p in net.parameters()]
    assert not np.array_equal(net[1].running_mean.numpy(), before)
    with pytest.raises(ZeroDivisionError):
        lm.grad(lambda x: loss(x)[0] / (1 // 0))(x)
    after = net[1].running_mean.numpy().copy()
    with pytest.raises(ValueError, match="must give a scalar"):
        lm.grad(net)(x)
    np.testing.assert_array_equal(net[1].running_mean.numpy(), after)  # a program that fails changes nothing


def test_functional_call_of_a_module_with_states() -> None:
    net = network()
    params = dict(net.named_parameters())
    x = array(8, 3)
    found = lm.grad(lambda p: ops.sum(nn.functional_call(net, p, x) ** 2))(params)
    assert {n: g.shape for n, g in found.items()} == {n: p.shape for n, p in params.items()}


def test_a_gradient_penalty_of_parameters() -> None:
    """The norm of the gradient with respect to the input, differentiated in the parameters."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype="float64")
    x = array(5, 3)

    def penalty(net: Any, x: Any) -> Any:
        slope = lm.grad(lambda x: ops.sum(net(x)))(x)
        return ops.mean((ops.sqrt(ops.sum(slope * slope, 1)) - 1) ** 2)

    found = lm.grad(penalty)(net, x)
    for name, p in net.named_parameters():
        held = p.numpy().copy()

        def at(values: Any, p: Any = p) -> float:
            p.copy_(values)
            return float(penalty(net, lm.tensor(x)))

        wanted = numeric(at, held)
        p.copy_(held)
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-4, atol=1e-7, err_msg=name)
    again = lm.jit(lm.grad(penalty))(net, x)
    for name, g in found.items():
        close(again[name], g)


# ---- nesting


@pytest.mark.parametrize("compiled", [False, True])
def test_several_levels(compiled: bool) -> None:
    f = lambda x: ops.sin(x) * x  # noqa: E731
    third = lm.grad(lm.grad(lm.grad(f)))
    third = lm.jit(third) if compiled else third
    x = 0.7
    close(third(np.float64(x)), -3 * np.sin(x) - x * np.cos(x))


def test_inner_variables_are_their_own() -> None:
    """d/dy (x y) at y = x is x, also where the outer variable is the inner one's value."""
    f = lambda x: lm.grad(lambda y: x * y)(x)  # noqa: E731
    assert f(np.float64(3)).item() == 3
    assert lm.grad(lambda x: x * f(x))(np.float64(3)).item() == 6


# ---- vjp, jvp, hvp


def test_vjp_gives_a_tuple_and_may_be_called_again() -> None:
    x, y = array(3), array(3)
    (out, pull) = lm.vjp(lambda x, y: {"a": x * y, "b": (ops.sin(x), 3)}, x, y)
    close(out["a"], x * y)
    for c in (array(3), array(3)):
        dx, dy = pull({"a": c, "b": (c, np.int64(0))})
        close(dx, c * (y + np.cos(x)))
        close(dy, c * x)
    out, pull, aux = lm.vjp(lambda x: (x * 2, "aux"), x, has_aux=True)
    assert aux == "aux"
    close(pull(y)[0], 2 * y)
    close(lm.grad(lambda c: ops.sum(pull(c)[0] ** 2))(y), 8 * y)


def test_jvp_is_the_derivative_along_a_direction() -> None:
    x, w, tx, tw = array(4, 3), array(3, 2), array(4, 3), array(3, 2)
    f = lambda x, w: (ops.tanh(x @ w), {"n": ops.argmax(x @ w, 1)})  # noqa: E731
    out, along = lm.jvp(f, (x, w), (tx, tw))
    y = np.tanh(x @ w)
    close(out[0], y)
    close(along[0], (1 - y * y) * (tx @ w + x @ tw))
    assert along[1]["n"].tolist() == [0] * 4
    compiled = lm.jit(lambda *a: lm.jvp(f, a[:2], a[2:]))(x, w, tx, tw)
    close(compiled[1][0], along[0])
    assert lm.jvp(lambda x: (x, 5), (1.0,), (2.0,), has_aux=True)[2] == 5


def test_jvp_through_a_network() -> None:
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    net = nn.Sequential(*layers).to(dtype="float64")
    x, t = array(2, 2, 6, 6), array(2, 2, 6, 6)
    _, along = lm.jvp(net, (x,), (t,))
    step = 1e-6
    close(
        along,
        (net(lm.tensor(x + step * t)).numpy() - net(lm.tensor(x - step * t)).numpy()) / (2 * step),
        1e-5,
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_hvp(compiled: bool) -> None:
    a, x, v = array(3, 3), array(3), array(3)
    f = lambda x: ops.sum(ops.sin(x) * (lm.tensor(a) @ x))  # noqa: E731
    run = lambda x, v: lm.hvp(f, (x,), (v,))  # noqa: E731
    value, (product,) = (lm.jit(run) if compiled else run)(x, v)
    close(value, np.sum(np.sin(x) * (a @ x)))
    slope = lambda x: lm.grad(f)(x).numpy()  # noqa: E731
    close(product, (slope(x + 1e-6 * v) - slope(x - 1e-6 * v)) / 2e-6, 1e-5)


def test_stop_gradient() -> None:
    x = array(3)
    close(lm.grad(lambda x: ops.sum(x * lm.stop_gradient(x)))(x), x)
    close(lm.jit(lm.grad(lambda x: ops.sum(x * lm.stop_gradient(x))))(x), x)
    held = lm.tensor(x)
    assert lm.stop_gradient(held) is held
    graph = lm.trace(lambda x: lm.stop_gradient(ops.exp(x)), x)
    assert [n.op.name for n in lm.compile(graph, "cpu").graph.nodes] == ["exp"]
    np.testing.assert_array_equal(lm.jit(lm.stop_gradient)(x).numpy(), x)


# ---- messages


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: lm.grad(3), TypeError, "grad: takes a function, got 3"),
        (lambda: lm.grad(abs, 2)(1.0), ValueError, "argnums 2 names a positional argument that is not there: the"),
        (lambda: lm.grad(abs, "a")(1.0), TypeError, "grad: argnums must be an int or ints, got 'a'"),
        (lambda: lm.grad(abs)("x"), TypeError, "grad: args[0] is 'x', which is no tensor, array or module"),
        (lambda: lm.grad(abs)({"n": np.arange(3)}), TypeError, "grad: args[0]['n'] is i64[3]; only floating"),
        (lambda: lm.grad(lambda x: x)(lm.ones(2)), ValueError, "grad: fn must give a scalar of floating"),
        (lambda: lm.grad(lambda x: (x, x))(1.0), TypeError, "fn must give one scalar, got a tuple; has_aux=True"),
        (lambda: lm.grad(lambda x: x, has_aux=True)(1.0), TypeError, "grad: with has_aux fn must give (result, aux)"),
        (lambda: lm.grad(lambda x: "y")(1.0), TypeError, "grad: fn must give tensors, got 'y'"),
        (lambda: lm.vjp(abs, 1.0)[1]((1.0, 2.0)), TypeError, "cotangents must have the structure * of fn's"),
        (lambda: lm.vjp(abs, 1.0)[1](lm.ones(2)), TypeError, "vjp: cotangents must be f32[] here"),
        (lambda: lm.jvp(abs, 1.0, 1.0), TypeError, "jvp: primals must be a tuple, one per argument of fn, got 1.0"),
        (lambda: lm.jvp(abs, (1.0,), ()), TypeError, "jvp: 1 primals need as many tangents, got 0"),
        (lambda: lm.hvp(abs, (lm.ones(2),), (lm.ones(3),)), ValueError, "hvp: fn must give a scalar"),
        (lambda: lm.hvp(ops.sum, (lm.ones(2),), (lm.ones(3),)), TypeError, "hvp: tangents[0] must be f32[2] here"),
        (lambda: lm.trace(lambda x: lm.grad(lambda n, x: ops.sum(n(x)))(nn.Linear(2, 2), x), lm.ones(2)), TypeError,
         "grad: args[0] is a Linear within lamina.trace"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()


# ---- second derivatives of what has no kernel for them


@pytest.mark.feature("F068")
@pytest.mark.parametrize("mode", ["RNN", "LSTM", "GRU"])
def test_a_penalty_on_the_gradient_of_a_recurrent_network(mode: str) -> None:
    """Computed at once, and compiled: the same as finite differences of the first gradient."""
    lm.manual_seed(0)
    net = getattr(nn, mode)(2, 3, bidirectional=True).to(dtype="float64")

    def penalty(x: Any) -> Any:
        slope = lm.grad(lambda x: ops.sum(net(x)[0] ** 2))(x)
        return ops.sum(slope**2)

    x = array(3, 1, 2)
    found = lm.grad(penalty)(x)
    close(found, numeric(lambda x: float(penalty(x)), x, 1e-5), 1e-4)
    close(lm.jit(lm.grad(penalty))(x), found, 1e-9)


@pytest.mark.torch
@pytest.mark.feature("F068")
@pytest.mark.parametrize("mode", ["RNN", "LSTM", "GRU"])
def test_second_derivatives_of_recurrent_networks_against_torch(mode: str) -> None:
    import torch

    torch.manual_seed(0)
    theirs = getattr(torch.nn, mode)(3, 4, num_layers=2, dtype=torch.float64)
    ours = getattr(nn, mode)(3, 4, num_layers=2).to(dtype="float64")
    for (_, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        p.copy_(q.detach().numpy())
    x = array(5, 2, 3)

    def penalty(net: Any, x: Any) -> Any:
        return ops.sum(lm.grad(lambda x: ops.sum(net(x)[0] ** 2))(x) ** 2)

    found = lm.grad(penalty)(ours, x)
    given = torch.from_numpy(x).requires_grad_()
    (slope,) = torch.autograd.grad((theirs(given)[0] ** 2).sum(), given, create_graph=True)
    (slope**2).sum().backward()
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    for name, g in found.items():
        close(g, wanted[name], 1e-8)


def test_what_has_no_second_derivative_says_so() -> None:
    """As in PyTorch, whose own has none either."""
    targets, lengths = np.array([[1, 2]]), (np.array([6]), np.array([2]))
    with pytest.raises(TypeError, match="ctc_loss_grad has no gradient, and the result depends on it"):
        lm.hvp(
            lambda x: ops.ctc_loss(ops.log_softmax(x, 2), targets, *lengths),
            (array(6, 1, 4),),
            (array(6, 1, 4),),
        )


# ---- states, and second derivatives of the input


@pytest.mark.feature("F112")
def test_a_module_with_buffers_is_differentiated_as_it_is() -> None:
    """Batch norm's statistics are updated once by each call, whether it is computed at once or compiled."""
    x = array(6, 3)

    def run(through: Any) -> tuple[Any, ...]:
        lm.manual_seed(3)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).to(
            dtype="float64"
        )
        both = through(lm.value_and_grad(lambda net, x: ops.mean(net(x) ** 2)))
        for _ in range(3):
            loss, slopes = both(net, x)
        return net, float(loss), slopes

    net, loss, slopes = run(lambda f: f)
    other, loss2, slopes2 = run(lambda f: f)
    assert net[1].num_batches_tracked.item() == 3
    plain = nn.Sequential(*net)[0](x).numpy()
    mean = np.zeros(4)
    for _ in range(3):
        mean = 0.9 * mean + 0.1 * plain.mean(0)
    close(net[1].running_mean.numpy(), mean)
    compiled, loss3, slopes3 = run(lm.jit)
    assert loss == loss2
    close(loss3, loss, 1e-10)
    for name, g in slopes.items():
        close(slopes2[name].numpy(), g.numpy(), 1e-12)
        close(slopes3[name].numpy(), g.numpy(), 1e-9)
    close(compiled[1].running_var.numpy(), other[1].running_var.numpy(), 1e-10)


def wave(net: Any, lib: Any, grad: Any, points: Any) -> Any:
    """The mean square of u_tt - u_xx + sin(u) (the sine-Gordon equation) at points (t, x)."""
    u = net(points)
    first = grad(lambda p: net(p).sum())(points)
    second = [grad(lambda p, i=i: grad(lambda q: net(q).sum())(p)[:, i].sum())(points)[:, i] for i in (0, 1)]
    assert tuple(first.shape) == tuple(points.shape)
    return ((second[0] - second[1] + lib.sin(u[:, 0])) ** 2).mean()


def physics() -> nn.Module:
    lm.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


@pytest.mark.feature("F105")
def test_a_physics_informed_network_eagerly_compiled_and_afterwards() -> None:
    """Second derivatives of the input within the loss; then the same module runs eagerly."""
    net, points = physics(), array(32, 2).astype(np.float32)
    loss, slopes = lm.value_and_grad(lambda net, p: wave(net, ops, lm.grad, p))(net, points)
    compiled, slopes2 = lm.jit(lm.value_and_grad(lambda net, p: wave(net, ops, lm.grad, p)))(net, points)
    close(float(loss), float(compiled), 1e-5)
    for name, g in slopes.items():
        close(g.numpy(), slopes2[name].numpy(), 1e-4)
    before = net(points).numpy()
    for p, g in zip(net.parameters(), slopes.values(), strict=True):
        p.copy_(p - 1e-2 * g)
    assert float(wave(net, ops, lm.grad, lm.tensor(points))) < float(loss)
    assert (net(points).numpy() != before).any()


@pytest.mark.torch
@pytest.mark.feature("F105")
def test_a_physics_informed_network_against_torch() -> None:
    """Ten steps of gradient descent: losses within 1e-4 of PyTorch's, and the gradients."""
    import torch

    ours, points = physics(), array(32, 2).astype(np.float32)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(2, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 1),
    )
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    both = lm.jit(lm.value_and_grad(lambda net, p: wave(net, ops, lm.grad, p)))
    for _ in range(10):
        loss, slopes = both(ours, points)
        wanted = wave(theirs, torch, torch.func.grad, torch.from_numpy(points))
        theirs.zero_grad()
        wanted.backward()
        close(float(loss), wanted.item(), 1e-4)
        with torch.no_grad():
            for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
                close(slopes[name].numpy(), q.grad.numpy(), 1e-4)
                p.copy_(p - 1e-2 * slopes[name])
                q -= 1e-2 * q.grad


def test_functions_get_tensors_in_place_of_arrays_as_when_they_are_compiled() -> None:
    """`std` of an array is another number than of a tensor."""
    x, other = np.array([1.0, 2.0]), np.array([1.0, 3.0, 8.0])

    def f(x: Any, other: Any) -> Any:
        return ops.sum(x) * other["of"].std()

    for way in (lm.grad(f), lm.jit(lm.grad(f))):
        np.testing.assert_allclose(way(x, {"of": other}).numpy(), [other.std(ddof=1)] * 2, rtol=1e-12)


def _by_jvp(f: Any) -> Any:
    return lambda x: lm.jvp(f, (x,), (np.ones(2),))[1]


def _by_vjp(f: Any) -> Any:
    return lambda x: lm.vjp(f, x)[1](np.ones(2))[0]


def _by_grad(f: Any) -> Any:
    return lm.grad(lambda x: ops.sum(f(x)))


@pytest.mark.parametrize("outer", [_by_jvp, _by_vjp, _by_grad])
@pytest.mark.parametrize("inner", [_by_jvp, _by_vjp, _by_grad])
@pytest.mark.parametrize("inmost", [_by_jvp, _by_vjp, _by_grad])
def test_a_derivative_of_a_derivative_at_once_and_compiled(outer: Any, inner: Any, inmost: Any) -> None:
    x = np.array([0.7, 0.2])
    for run in (lambda f: f, lm.jit):
        np.testing.assert_allclose(run(outer(inner(ops.sin)))(x).numpy(), -np.sin(x), rtol=1e-12)
        np.testing.assert_allclose(run(outer(inner(inmost(ops.sin))))(x).numpy(), -np.cos(x), rtol=1e-12)


def test_a_gradient_of_what_products_with_a_hessian_give() -> None:
    x, v = np.array([0.7, 0.2]), np.array([1.0, 2.0])

    def f(x: Any) -> Any:
        value, product = lm.hvp(lambda x: ops.sum(ops.sin(x)), (x,), (v,))
        return value + ops.sum(product[0])

    for run in (lambda f: f, lm.jit):
        np.testing.assert_allclose(run(lm.grad(f))(x).numpy(), np.cos(x) - v * np.cos(x), rtol=1e-12)


def test_a_derivative_within_a_network_is_differentiated_in_its_parameters() -> None:
    """The pullback's primals are the parameters themselves, of which the outer derivative is taken."""
    import numpy as np

    import lamina as lm
    from lamina import nn, ops

    class Net(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(lm.tensor(np.linspace(-1, 1, 6).reshape(2, 3)))

        def forward(self, x: lm.Tensor) -> lm.Tensor:
            y = ops.matmul(x, self.w)
            return lm.vjp(lambda x, w: ops.matmul(x, w), x, self.w)[1](ops.sin(y))[0]

    net, x = Net(), lm.tensor(np.linspace(0, 2, 8).reshape(4, 2))
    loss = lambda net: (net(x) ** 2).sum()  # noqa: E731
    found = lm.grad(loss)(net)["w"].numpy()

    def value(w: np.ndarray) -> float:
        y = np.sin(x.numpy() @ w) @ w.T
        return float((y**2).sum())

    w, wanted = net.w.numpy().copy(), np.zeros((2, 3))
    for at in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[at] = 1e-5
        wanted[at] = (value(w + step) - value(w - step)) / 2e-5
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


# ---- all ops


def _function(sample: Sample, arrays: list[Any], moving: list[int]) -> Any:
    """The sample's op in its differentiable operands alone: a tuple of its floating point results."""

    def function(*given: Any) -> Any:
        operands = [lm.tensor(a) for a in arrays]
        for i, x in zip(moving, given, strict=True):
            operands[i] = x
        results = call(sample.op, *operands)
        return tuple(y for y in (results if isinstance(results, tuple) else (results,)) if y.dtype.is_float)

    return function


def _small_samples() -> list[tuple[str, Sample]]:
    """The first float64 sample of up to 16 forms (fields) of each op that has second derivatives."""
    found = []
    for name, op in REGISTRY.items():
        if issubclass(op, Collective | Fused) or name.startswith("ctc") or not op.differentiable:
            continue
        known = [s for s in op.samples() if float64 in (s.dtypes or s.op.dtypes)]
        small = [s for s in known if sum(int(np.prod(a.shape)) for a in s.args) < 2000]
        found += [(name, s) for s in list({s.op: s for s in reversed(small)}.values())[-16:]]
    return found


def test_derivatives_of_all_ops_forward_and_backward_are_adjoint() -> None:
    """<c, jvp(t)> = <vjp(c), t>: the vjp is linear in its cotangents, some of which are zero."""
    wrong, checked = [], 0
    for number, (name, sample) in enumerate(_small_samples()):
        rng = np.random.default_rng(number)
        arrays = sample.draw(rng, float64)
        moving = [i for i, a in enumerate(sample.args) if a.differentiable and arrays[i].dtype == np.float64]
        function, primals = _function(sample, arrays, moving), tuple(lm.tensor(arrays[i]) for i in moving)
        if not moving or not (outputs := function(*primals)):
            continue
        tangents = [rng.standard_normal(x.shape) for x in primals]
        cotangents = [rng.standard_normal(y.shape) * (rng.random(y.shape) > 0.3) for y in outputs]
        back = lm.vjp(function, *primals)[1](
            tuple(lm.tensor(c, dtype=y.dtype) for c, y in zip(cotangents, outputs, strict=True))
        )
        along = lm.jvp(function, primals, tuple(lm.tensor(t) for t in tangents))[1]
        terms = [float((g.double().numpy() * t).sum()) for g, t in zip(back, tangents, strict=True)]
        others = [float((y.double().numpy() * c).sum()) for y, c in zip(along, cotangents, strict=True)]
        checked += 1
        if not np.isclose(sum(terms), sum(others), rtol=1e-4, atol=1e-4 * max(map(abs, [*terms, *others]))):
            wrong.append(f"{name} {sample}: {sum(others)} forward, {sum(terms)} backward")
    assert wrong == []
    assert checked > 250
