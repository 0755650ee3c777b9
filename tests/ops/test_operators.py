"""Python's operators and methods call the functions; operands keep their identity as keys."""

import inspect
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.ops.operators import IN_PLACE, METHODS, OWN_METHODS, Operators
from lamina.spec import ShapeError
from tests.helpers.eager import Eager

A, B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 0.5], [1.0, 4.0]])


@pytest.mark.parametrize(
    "expression",
    [
        lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a**b,
        lambda a, b: a @ b, lambda a, b: -a, lambda a, b: +a, lambda a, b: abs(-a), lambda a, b: 2 - a,
        lambda a, b: 2 / a, lambda a, b: 2**a, lambda a, b: 3 * a + 1, lambda a, b: a == b, lambda a, b: a != b,
        lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b, lambda a, b: a < 2,
        lambda a, b: (a > 1) & (b > 1), lambda a, b: (a > 1) | (b > 1), lambda a, b: ~(a > 1), lambda a, b: a[0],
        lambda a, b: a[:, ::-1], lambda a, b: a.T, lambda a, b: a.sum(0), lambda a, b: a.std() * 0,
        lambda a, b: a.prod(), lambda a, b: a.max(), lambda a, b: a.min(), lambda a, b: a.argmax(1),
        lambda a, b: a.argmin(0), lambda a, b: a.reshape(4), lambda a, b: a.reshape(1, 4),
        lambda a, b: a.reshape((4, 1)), lambda a, b: a.transpose(1, 0), lambda a, b: a.mT,
        lambda a, b: a.flatten(), lambda a, b: a.squeeze(), lambda a, b: np.minimum(a, 3),
        lambda a, b: np.maximum(a, 3), lambda a, b: np.exp(a), lambda a, b: np.subtract(2, a),
    ],
)  # fmt: skip
def test_like_numpy(expression: Any) -> None:
    found = expression(Eager(A), Eager(B))
    np.testing.assert_allclose(found.value, expression(A, B), rtol=1e-14)


def test_methods_without_a_counterpart_in_numpy() -> None:
    x = Eager(A)
    for found, wanted in [
        (x.exp(), np.exp(A)), (x.log(), np.log(A)), (x.sqrt(), np.sqrt(A)), (x.rsqrt(), A**-0.5),
        (x.reciprocal(), 1 / A), (x.sign(), np.sign(A)), (x.sin(), np.sin(A)), (x.cos(), np.cos(A)),
        (x.tan(), np.tan(A)), (x.tanh(), np.tanh(A)), (x.relu(), A), (x.sigmoid(), 1 / (1 + np.exp(-A))),
        (x.softplus(), np.log1p(np.exp(A))), (x.silu(), A / (1 + np.exp(-A))), (x.var(0), A.var(0, ddof=1)),
        (x.softmax(), np.exp(A) / np.exp(A).sum(-1, keepdims=True)), (x.cast("float32"), A),
        (x.log_softmax(0), A - np.log(np.exp(A).sum(0))), (x.unsqueeze(1), A[:, None]),
        (x.expand(3, 2, 2), np.stack([A] * 3)), (x.clamp(2, 3), A.clip(2, 3)),
        (x.mean(1, keepdim=True), A.mean(1)[:, None]), (x.amax(0), A.max(0)), (x.amin(1), A.min(1)),
        (x.max(0).values, A.max(0)), (x.min(1).indices, A.argmin(1)), (x.std(0), A.std(0, ddof=1)),
        (x.chunk(2)[1], A[1:]), (x.transpose(0, 1), A.T), (x.max(x.mT), np.maximum(A, A.T)),
        (x.flip(0), A[::-1]), (x.permute(1, 0), A.T), (x.split(1)[1], A[1:]),
        (x.sum_to((2,)), A.sum(0)), (x.where(x > 2, 0.0), np.where(A > 2, A, 0)), (x.view(4), A.ravel()),
        (x.expand(3, -1, 2), np.stack([A] * 3)), (x.view_as(x.reshape(4)), A.ravel()), (x.float(), A),
        (x.double(), A), (x.half(), A), (x.bfloat16().float(), A), (x.long(), A), (x.int(), A), (x.bool(), A != 0),
        (x.sum(0).expand_as(x), np.stack([A.sum(0)] * 2)),
        (x.sum(0).broadcast_to(*x.shape), np.stack([A.sum(0)] * 2)), (x.type_as(x > 2), A != 0),
        (x.type(lm.int64), A),
        (x.abs(), A), ((x > 2).logical_not(), A <= 2), (x.erf() + x.gelu() * 0, ops.erf(x).value),
    ]:  # fmt: skip
        np.testing.assert_allclose(found.value, wanted, rtol=1e-6)


def test_operands_are_keys_by_identity() -> None:
    a, b = Eager(A), Eager(A)
    names = {a: "a", b: "b"}
    assert (names[a], names[b], len({a, b, a})) == ("a", "b", 2)


def test_nothing_and_texts_are_no_operand() -> None:
    """As with torch: `if mask != None` asks whether there is one."""
    for x in (Eager(A), lm.ones(2)):
        assert (x != None, x == None) == (True, False)  # noqa: E711
        assert (x != "same", x == "same") == (True, False)
        assert [None, x].index(x) == 1
    assert lm.jit(lambda x: x + 1 if x != None else x)(lm.ones(1)).tolist() == [2]  # noqa: E711


def test_arrays_beside_operands() -> None:
    """NumPy gives way: an array on the left becomes an operand like one on the right."""
    for found in (A + Eager(B), Eager(B) + A, np.float64(1) * Eager(A), Eager(A) * B):
        assert isinstance(found, Eager)
    assert (A - Eager(B)).value.tolist() == (A - B).tolist()


def test_len_and_iteration() -> None:
    x = Eager(A)
    assert len(x) == 2
    with pytest.raises(TypeError, match=r"a tensor of shape \(\) has no length"):
        len(x.sum())
    assert [row.value.tolist() for row in x] == A.tolist()
    first, second = x
    assert (first + second).value.tolist() == [4, 6]
    with pytest.raises(TypeError, match="has no length"):
        list(x.sum())


def test_scalars_from_either_side() -> None:
    x = Eager(np.array([1, 2], np.int32))
    assert ((3 - x).value.tolist(), (x - 3).value.tolist(), (x > 1).value.tolist()) == (
        [2, 1],
        [-2, -1],
        [False, True],
    )
    assert (3 - x).dtype == x.dtype


def test_what_it_is() -> None:
    x = Eager(np.zeros((2, 3), np.int16))
    assert (x.dim(), x.numel(), x.element_size(), x.is_floating_point()) == (2, 6, 2, False)
    assert [y.dtype.name for y in (x.half(), x.float(), x.double(), x.int(), x.long(), x.bool())] == [
        "float16", "float32", "float64", "int32", "int64", "bool",
    ]  # fmt: skip


def test_numpy_functions_without_an_op_say_so() -> None:
    x = Eager(A)
    for call, name in [
        (lambda: np.spacing(x), "numpy.spacing"),
        (lambda: np.add.reduce(x), "numpy.add.reduce"),
        (lambda: np.add(A, x, out=A), "numpy.add"),
    ]:
        with pytest.raises(TypeError, match=f"{name} knows no Eager; use lamina.ops"):
            call()


def test_a_method_is_the_function() -> None:
    for name in METHODS + OWN_METHODS:
        assert getattr(Operators, name) is getattr(ops, name)


@pytest.mark.torch
def test_every_function_that_torch_has_as_a_method_is_one() -> None:
    torch = pytest.importorskip("torch")
    unlike = {"unfold"}  # torch's method is a sliding window, its function im2col
    shared = {n for n in ops.__all__ if callable(getattr(torch.Tensor, n, None))} - unlike
    assert sorted(shared - set(vars(Operators))) == []
    assert [n for n in METHODS if not hasattr(torch.Tensor, n)] == []


def test_what_stands_beside_a_tensor() -> None:
    x = lm.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert x.size() == (2, 3) == (x.size(0), x.size(-1))
    assert x.nelement() == 6
    for made, value, kind in (
        (x.new_zeros(2, 2), 0, "float32"),
        (x.new_ones((2, 2), dtype="int64"), 1, "int64"),
        (x.new_full((2, 2), 1.5), 1.5, "float32"),
    ):
        assert made.tolist() == [[value] * 2] * 2
        assert made.dtype.name == kind
    with pytest.raises(IndexError, match="size: dim must be within the 2 axes of .*, got 2"):
        x.size(2)
    with pytest.raises(TypeError, match=r"size: dim must be an int, got 1\.0"):
        x.size(1.0)


def test_detached_and_cloned() -> None:
    def f(x: Any) -> Any:
        return ops.sum(x.clone().contiguous() * x.detach())

    x = lm.tensor([1.0, 2.0])
    assert lm.grad(f)(x).tolist() == [1, 2] == lm.jit(lm.grad(f))(x).tolist()
    other = x.clone()
    other.fill_(7)
    assert x.tolist() == [1, 2]
    assert type(nn.Parameter(x).clone()) is lm.Tensor
    assert x.cpu() is x

    @lm.jit
    def keep(y: Any) -> Any:
        before = x.clone()
        x.copy_(x + y)
        return before * 1, x * 1

    before, after = keep(np.ones(2, np.float32))
    assert (before.tolist(), after.tolist()) == ([1, 2], [2, 3])


# ------------------------------------------------------------------------------------------------ written in place
def in_place_call(lib: Any, name: str) -> Any:
    """A tensor after one of its methods wrote over it: operands of the shapes and kinds that the method takes."""
    tensor = lib.tensor
    whole = name.startswith(("bitwise_", "gcd", "lcm"))
    x = (
        tensor(np.arange(1, 10).reshape(3, 3))
        if whole
        else tensor(np.arange(1, 10, dtype=np.float32).reshape(3, 3) / 16)
    )
    y = tensor(np.array([[2, 1, 3]], np.int64 if whole else np.float32))
    row, square = tensor(np.array([0, 2, 1])), tensor(np.eye(3, dtype=np.float32) + 1)
    at, mask = tensor(np.array([[0, 2, 1]])), tensor(np.array([[True], [False], [True]]))
    stack = tensor(np.arange(18, dtype=np.float32).reshape(2, 3, 3) / 8)
    batch = tensor(np.ones((2, 3, 3), np.float32))
    given: dict[str, tuple[Any, ...]] = {
        "addbmm": (stack, batch), "addcdiv": (square, y), "addcmul": (square, y), "addmm": (square, square),
        "addmv": (square, row / 2), "addr": (y[0], y[0]), "baddbmm": (batch, batch), "cumprod": (1,),
        "cumsum": (0,), "index_add": (1, row, square), "index_copy": (0, row, square), "index_fill": (1, row, 2.5),
        "put": (row, row * 0.5),
        "index_put": ((row, row), y[0]), "index_reduce": (0, row, square, "amax"), "lerp": (square, 0.25),
        "logit": (0.1,), "masked_fill": (mask, -1.0), "masked_scatter": (mask, square), "mvlgamma": (2,),
        "renorm": (2, 0, 0.5), "scatter": (0, at, y), "scatter_add": (0, at, y), "scatter_reduce": (0, at, y, "prod"),
        "clamp": (0.2, 0.4), "clamp_max": (0.3,), "clamp_min": (0.3,), "mul": (y,),
    }  # fmt: skip
    if name == "baddbmm":
        x = stack
    if name == "mvlgamma":
        x = square
    parameters = list(inspect.signature(getattr(ops, name)).parameters.values())
    binary = len(parameters) > 1 and parameters[1].name == "other"
    arguments = given.get(name, (y,) if binary or name in ("float_power", "pow", "heaviside") else ())
    if name == "addmv":
        x = row / 4
    if name == "float_power":
        x = x.double()
    before = x
    assert getattr(x, f"{name}_")(*arguments) is before
    return x.numpy()


def test_what_is_written_keeps_shape_and_dtype() -> None:
    x, whole = lm.tensor([[1.0], [2.0]]), lm.tensor([1, 2])
    with pytest.raises(
        ShapeError, match=r"add_: the result has shape \(2, 3\), which cannot be written over f32\[2,1\]"
    ):
        x.add_(lm.ones(2, 3))
    with pytest.raises(
        TypeError, match=r"mul_: the result is float32, whose fractions i64\[2\] does not hold"
    ):
        whole.mul_(0.5)
    assert (x.tolist(), whole.tolist()) == ([[1.0], [2.0]], [1, 2])
    assert whole.add_(1).tolist() == [2, 3]
    assert x.half().add_(lm.ones(2, 1)).dtype.name == "float16"
    assert x.fill_(3).tolist() == [[3.0], [3.0]]
    assert x.zero_().tolist() == [[0.0], [0.0]]


def test_draws_are_written() -> None:
    x = lm.empty(20000)
    lm.manual_seed(3)
    x.normal_(2.0, 0.5)
    assert abs(float(x.mean()) - 2) < 0.02
    assert abs(float(x.std()) - 0.5) < 0.02
    x.uniform_(-1, 3)
    assert -1 <= float(x.min()) < -0.99
    assert 2.99 < float(x.max()) < 3
    assert set(x.bernoulli_(0.25).unique().tolist()) == {0.0, 1.0}
    assert abs(float(x.mean()) - 0.25) < 0.01


def test_what_a_traced_value_has_not() -> None:
    with pytest.raises(AttributeError, match=r"^Value has no attribute 'rlu'$"):
        lm.jit(lambda x: x.rlu())(lm.ones(3, 4))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("backward", "take lamina.grad or lamina.value_and_grad of a function, or lamina.train_step"),
        ("expand_dims", "Tensor has no attribute 'expand_dims'; it is unsqueeze"),
        ("power_", "Tensor has no attribute 'power_'; it is pow_$"),
        ("as_strided", r"windows of an axis are x\.unfold"),
        ("imag", "it is a last axis of two: a complex number is one here"),
        ("anything", "^Tensor has no attribute 'anything'$"),
    ],
)
def test_what_torch_calls_otherwise_is_said(name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=text):
        getattr(lm.ones(2), name)
    assert not hasattr(lm.ones(2), name)


def test_compiled_functions_write_what_they_close_over() -> None:
    average, value = lm.zeros(2), lm.tensor([1.0, 3.0])

    @lm.jit
    def step(weight: Any) -> Any:
        average.lerp_(value, weight).clamp_(max=2)
        return average.sum()

    assert [float(step(w)) for w in (0.5, 0.5, 1.0)] == [2.0, 2.75, 3.0]
    assert average.tolist() == [1.0, 2.0]


def test_every_method_that_torch_writes_with_is_listed() -> None:
    assert [n for n in IN_PLACE if n not in METHODS] == []
    assert len(IN_PLACE) == len(set(IN_PLACE))


@pytest.mark.torch
def test_methods_that_torch_has_in_place_are_those_of_the_list() -> None:
    torch = pytest.importorskip("torch")
    apart = {
        "bernoulli",
        "squeeze",
        "swapaxes",
        "t",
        "transpose",
        "unsqueeze",
    }  # draws by p alone; changes of shape
    assert sorted(apart | set(IN_PLACE)) == [n for n in sorted(METHODS) if hasattr(torch.Tensor, f"{n}_")]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("name", IN_PLACE)
def test_methods_write_what_those_of_torch_write(name: str) -> None:
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(
        in_place_call(lm, name), in_place_call(torch, name), 1e-5, 1e-6, equal_nan=True
    )


def test_tile_takes_numbers_one_by_one_and_in_a_sequence() -> None:
    x = lm.tensor([[1.0, 2.0]])
    assert x.tile(2).shape == (1, 4)
    assert x.tile(3, 2).shape == x.tile((3, 2)).shape == (3, 4)


def test_a_diagonal_is_filled() -> None:
    x, wanted = lm.zeros((3, 4)), np.zeros((3, 4))
    np.fill_diagonal(wanted, 2)
    assert x.fill_diagonal_(2.0).tolist() == x.tolist() == wanted.tolist()
    with pytest.raises(ShapeError, match="fill_diagonal_: needs at least two axes"):
        lm.zeros(3).fill_diagonal_(1.0)


def test_shapes_change_in_place() -> None:
    x = lm.tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    same = x
    assert x.unsqueeze_(0) is x
    assert (same.shape, same.stride(), same.stride(-1)) == ((1, 2, 3), (6, 3, 1), 1)
    assert x.squeeze_(0).shape == (2, 3)
    np.testing.assert_array_equal(x.t_().numpy(), np.arange(6.0).reshape(2, 3).T)
    np.testing.assert_array_equal(x.transpose_(0, 1).numpy(), np.arange(6.0).reshape(2, 3))
    x.add_(1.0)
    assert x.numpy()[0, 0] == 1.0
    with pytest.raises(TypeError, match=r"unsqueeze_: f32\[3\] is a part of another tensor.*x = x.unsqueeze"):
        x[0].unsqueeze_(0)
    with pytest.raises(TypeError, match="squeeze_: a shape is settled when a function is traced"):
        lm.jit(lambda: x.squeeze_())()
    with pytest.raises(IndexError, match="stride: dim must be within the 2 axes"):
        x.stride(2)
    assert (x.itemsize, x.is_leaf, x.storage_offset(), x.get_device()) == (4, True, 0, -1)
    assert (x.ndimension(), x.is_signed(), x.bool().is_signed(), x.is_complex()) == (2, True, False, False)
    assert x.is_same_size(lm.zeros(2, 3))
    assert not x.is_same_size(lm.zeros(3, 2))


def test_values_are_put_at_places_of_the_flattened_tensor() -> None:
    x = lm.zeros(2, 3)
    assert x.put_(np.array([1, 5]), np.array([2, 3])) is x
    assert x.tolist() == [[0, 2, 0], [0, 0, 3]]
    assert x.put(np.array([[0, 0]]), np.array([[1.0, 2.0]]), accumulate=True).tolist() == [
        [3, 2, 0],
        [0, 0, 3],
    ]


def test_numbers_are_drawn_in_place() -> None:
    lm.manual_seed(0)
    x = lm.zeros(200, 100, dtype="float64")
    for draw, mean in (
        (lambda: x.exponential_(2.0), 0.5),
        (lambda: x.geometric_(0.25), 4.0),
        (lambda: x.random_(3, 8), 5.0),
        (lambda: x.random_(9), 4.0),
        (lambda: x.log_normal_(0.0, 0.5), np.exp(0.125)),
        (
            lambda: x.cauchy_(2.0, 0.5).sub_(2.0).abs_().clamp_(max=1.0),
            0.5 * np.log(5) / np.pi + 1 - 2 * np.arctan(2) / np.pi,
        ),
    ):
        draw()
        assert float(x.mean()) == pytest.approx(mean, rel=0.05)
    assert set(np.unique(lm.zeros(100, dtype="int64").random_(2, 4).numpy())) == {2, 3}
    assert lm.zeros(1000, dtype="int8").random_().numpy().max() <= 127
    for draw, message in (
        (lambda: x.exponential_(0.0), "exponential_: lambd must be above 0, got 0.0"),
        (lambda: x.geometric_(1.0), r"geometric_: p must be in \(0, 1\), got 1.0"),
        (lambda: x.random_(3, 3), r"random_: \[3, 3\) is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            draw()


def test_new_tensor_takes_traced_values() -> None:
    """In a compiled function as outside of it: the values, of the tensor's dtype."""
    x, y = lm.ones(3), lm.tensor(np.array([1, 2, 3]))
    for call in (lambda a, b: a.new_tensor(b * 2), lm.jit(lambda a, b: a.new_tensor(b * 2))):
        found = call(x, y)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found.numpy(), [2, 4, 6])


def test_in_looks_at_all_elements() -> None:
    """As torch's: at every element, not row by row."""
    x = lm.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert 3 in x
    assert 5 not in x
    assert x[1] in x
    assert lm.tensor([9.0, 2.0]) in x
    assert float("nan") not in x
    with pytest.raises(TypeError, match="where"):
        lm.jit(lambda x: 3 in x)(x)


def test_other_names_are_methods() -> None:
    x = lm.tensor([-1.5, 2.5])
    assert x.absolute().tolist() == [1.5, 2.5]
    assert x.not_equal(2.5).tolist() == [True, False]
    assert x.clip_(max=1).tolist() == x.tolist() == [-1.5, 1.0]
    assert x.multiply_(2).negative().tolist() == [3.0, -2.0]
    m = lm.zeros(2, 3, 4)
    assert m.moveaxis(0, -1).shape == (3, 4, 2)
    assert m.swapdims_(0, 1) is m
    assert m.shape == (3, 2, 4)


def test_sizes_are_given_by_name_too() -> None:
    x = lm.tensor([[1.0, 2.0, 3.0]])
    assert x.flip(dims=(1,)).tolist() == x.flip(dims=1).tolist() == [[3.0, 2.0, 1.0]]
    assert (
        x.permute(dims=(1, 0)).shape == x.reshape(shape=(3, 1)).shape == x.view(size=(3, 1)).shape == (3, 1)
    )
    assert (
        x.expand(size=(2, -1)).shape == x.repeat(repeats=(2, 1)).shape == x.tile(dims=(2, 1)).shape == (2, 3)
    )
    assert x.new_zeros(size=(2,), dtype="int64").dtype == lm.int64
    assert lm.zeros(size=(2, 3)).shape == lm.ones(size=(2, 3)).shape == ops.rand(size=(2, 3)).shape == (2, 3)
    with pytest.raises(TypeError, match="flip: dims is given by place and by name"):
        x.flip(0, dims=1)
    assert lm.jit(lambda x: x.permute(dims=(1, 0)) * 2)(x).tolist() == [[2.0], [4.0], [6.0]]


def test_sums_down_to_a_size() -> None:
    x = lm.ones(2, 3)
    assert x.sum_to_size(1, 3).tolist() == x.sum_to_size((1, 3)).tolist() == [[2.0, 2.0, 2.0]]
    with pytest.raises(ShapeError, match="sum_to"):
        x.sum_to_size(2)


def test_matrices_transposed() -> None:
    x = lm.tensor([[1.0, 2.0]])
    assert x.H.tolist() == x.mH.tolist() == x.adjoint().tolist() == [[1.0], [2.0]]
    assert lm.zeros(2, 3, 4).mH.shape == (2, 4, 3)
    with pytest.raises(ShapeError, match="H: needs a matrix"):
        _ = lm.zeros(2, 3, 4).H
    assert x.is_cpu
    assert not x.is_cuda


def test_bits_are_no_other_dtype() -> None:
    x = lm.tensor([1.0, 2.0])
    with pytest.raises(
        TypeError, match=r"view: takes sizes, got lamina\.int32: to\(dtype\) converts numbers"
    ):
        x.view(lm.int32)
    assert lm.from_dlpack(x.numpy().view(np.int32)).tolist() == [0x3F800000, 0x40000000]


def test_one_element_is_or_is_not_zero() -> None:
    assert lm.tensor([2]).is_nonzero()
    assert not ops.is_nonzero(lm.tensor(0.0))
    with pytest.raises(ShapeError, match="is_nonzero: needs one element"):
        lm.zeros(2).is_nonzero()
    assert ops.is_floating_point(lm.zeros(2))
    assert not ops.is_floating_point(np.arange(3))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("normal_", (2.0, 0.5)), ("uniform_", (-1, 3)), ("exponential_", (2.0,)), ("geometric_", (0.3,)),
        ("log_normal_", (0.0, 1.0)), ("cauchy_", ()), ("random_", (3, 90)), ("bernoulli_", (0.4,)),
    ],
)  # fmt: skip
def test_draws_by_a_generator(name: str, args: tuple[float, ...]) -> None:
    first, second = (getattr(lm.zeros(40), name)(*args, generator=nn.Generator(3)) for _ in range(2))
    other = getattr(lm.zeros(40), name)(*args, generator=nn.Generator(4))
    assert (first == second).all()
    assert not (first == other).all()


def test_parts_by_the_names_of_torch() -> None:
    x = lm.tensor(np.arange(24.0).reshape(4, 6))
    assert [p.shape for p in x.split(split_size=3)] == [(3, 6), (1, 6)]
    assert [p.shape for p in x.tensor_split(sections=2, dim=1)] == [(4, 3), (4, 3)]
    assert [p.shape for p in ops.hsplit(x, indices=[2])] == [(4, 2), (4, 4)]
    assert x.swapdims(dim0=0, dim1=1).shape == x.swapaxes(axis0=0, axis1=1).shape == (6, 4)
    assert x.copy_(lm.zeros(4, 6), non_blocking=True).tolist() == [[0.0] * 6] * 4
