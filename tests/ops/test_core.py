"""The base class of ops: registry, names, samples, and how operands decide what a call means."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.ops import core
from lamina.ops.core import REGISTRY, Arg, Op, Operand, Sample, bind, call, made
from lamina.ops.primitives import Add, Concat, Conv, Expand, Matmul, MaxPool, Pad, Relu, Reshape, Window
from lamina.ops.primitives.marker import StopGradient
from lamina.spec import (
    DTypeError,
    ShapeError,
    Spec,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from tests.helpers.eager import Eager


def test_registry_names() -> None:
    assert REGISTRY["conv"] is Conv
    assert REGISTRY["max_pool"] is MaxPool
    assert Relu.name == "relu"
    assert all(
        name == op_class.name and name.isidentifier() and name.islower()
        for name, op_class in REGISTRY.items()
    )
    assert not any(op_class.__name__.startswith("_") for op_class in REGISTRY.values())


def test_ops_print_their_fields() -> None:
    op = Conv(Window((2, 1), ((0, 1), (1, 1)), (1, 1), 4, True))
    assert str(op) == "conv(window=[stride=(2,1),padding=((0,1),(1,1)),groups=4,flip])"
    assert str(Relu()) == "relu()"
    assert op == eval(repr(op), {"Conv": Conv, "Window": Window})  # the repr is the value
    assert str(Sample.of(Add(), (2, 3), ())) == "add() [2,3]x[]"
    with pytest.raises(AttributeError):
        op.window = Window((1,), ((0, 0),), (1,))  # type: ignore[misc]


def test_operands_of_higher_priority_decide() -> None:
    class Low(Eager):
        bind_priority = 1

    class High(Eager):
        bind_priority = 12

    for pair in ((Low(np.ones(2)), High(np.ones(2))), (High(np.ones(2)), Low(np.ones(2)))):
        assert type(call(Add(), *pair)) is High
    assert type(call(Add(), Low(np.ones(2)), np.ones(2))) is Low


def test_foreign_arrays_need_an_adopter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_adopt", [])
    with pytest.raises(TypeError, match="ndarray is not a tensor; import lamina to have arrays adopted"):
        call(Relu(), np.ones(2))
    core.register_adopter(Eager)
    assert call(Relu(), np.float32([-1, 2])).value.tolist() == [0, 2]
    assert str(core.spec_of(np.ones((2, 3)))) == "f64[2,3]"
    core.register_adopter(lambda x: Eager(np.asarray(x, np.float32)))  # the last one counts
    assert core.spec_of([1, 2]).dtype is float32


def test_base_says_what_is_missing() -> None:
    class _Nothing(Op):
        pass

    op = _Nothing()
    assert _Nothing.name not in REGISTRY
    with pytest.raises(NotImplementedError, match="nothing has no gradient"):
        op.vjp((), (), ())
    for method in (op.infer, op.reference, _Nothing.samples):
        with pytest.raises(NotImplementedError):
            method()
    assert op.prune((True,)) is op
    with pytest.raises(NotImplementedError):
        Operand().spec  # noqa: B018
    with pytest.raises(NotImplementedError):
        Operand.bind_op(op, ())


@pytest.mark.parametrize(
    ("number", "dtype", "message"),
    [
        (256, uint8, "add: 256 is outside uint8"),
        (2**31, int32, "add: 2147483648 is outside int32"),
        (np.complex64(1j), float64, "add: .*1j.* is no number that a tensor of float64 can be combined with"),
    ],
)
def test_numbers_that_a_dtype_cannot_hold(number: Any, dtype: Any, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        core.together("add", Eager(np.zeros(1, dtype.numpy)), number)


@pytest.mark.parametrize(
    ("number", "dtype", "common"),
    [
        (1, float16, float16),
        (True, int32, int32),
        (0.1, bfloat16, bfloat16),
        (np.float64(0.1), float32, float32),
        (True, bool_, bool_),
        (1, bool_, int64),
        (0.5, int64, float32),
        (0.5, bool_, float32),
    ],
)
def test_numbers_take_the_dtype_unless_their_kind_is_higher(number: Any, dtype: Any, common: Any) -> None:
    x = Eager(np.zeros(1, dtype.numpy))
    for found in (core.together("add", x, number), core.together("add", number, x)[::-1]):
        assert (found[0].dtype, found[1].shape, found[1].dtype) == (common, (), common.numpy)


def test_tensors_without_axes_count_like_numbers() -> None:
    def common(a: Any, b: Any) -> str:
        return str(core.result_type(Eager(np.zeros(*a)), Eager(np.zeros(*b))))

    assert common((2, np.float32), ((), np.float64)) == "float32"
    assert common(((), np.float64), (2, np.float16)) == "float16"
    assert common((2, np.int8), ((), np.float64)) == "float64"
    assert common(((), np.int64), ((), np.int8)) == "int64"
    assert common((2, np.uint8), (2, np.int8)) == "int16"


def test_samples_are_drawn_as_they_say() -> None:
    rng = np.random.default_rng(0)
    assert Arg((2, 3)).draw(rng, float16).dtype == np.float16
    ints = Arg((1000,), int64, low=-2, high=3, integers=True).draw(rng, float32)
    assert (ints.dtype, sorted(set(ints.tolist()))) == (np.int64, [-2, -1, 0, 1, 2])
    apart = np.sort(Arg((5, 5), distinct=True).draw(rng, float64).ravel())
    assert np.diff(apart).min() > 0.1
    assert np.abs(apart).min() > 0.01
    assert Arg((99,), low=0.5, high=0.7).draw(rng, float64).min() >= 0.5
    assert Arg((2,), int64, value=(5, 6)).draw(rng, float32).tolist() == [5, 6]
    assert [a.shape for a in Sample.of(Add(), (2, 3), Arg(())).draw(rng, float32)] == [(2, 3), ()]


def test_infer_names_the_op_and_the_dtype() -> None:
    with pytest.raises(
        DTypeError, match="relu: dtype int32 is not among float64, float32, float16, bfloat16; cast"
    ):
        Relu().infer(Spec((2,), int32))
    with pytest.raises(
        DTypeError, match="add: input 1 is float16 but input 0 is float32; cast one with ops.cast"
    ):
        Add().infer(Spec((2,), float32), Spec((2,), float16))
    with pytest.raises(TypeError, match="add: takes 2 operands, got 3"):
        bind(Add(), Eager(np.ones(1)), Eager(np.ones(1)), Eager(np.ones(1)))


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        (
            Expand((2**40, 2**40)),
            [(1, 1)],
            r"expand: output shape \(.*\) has \d+ elements, more than 2\^63 - 1",
        ),
        (
            Expand((2**31, 2**31)),
            [(1, 1)],
            r"expand: output float32\[2147483648, 2147483648\] has more than 2\^63",
        ),
        (Pad(((2**62, 2**62),)), [(4,)], "pad: output shape .* more than"),
        (Add(), [(2**33, 1), (1, 2**33)], "add: output shape .* more than"),
        (Matmul(), [(2**33, 1), (1, 2**33)], "matmul: output shape .* more than"),
        (
            Concat(0),
            [(2**60,), (2**60,)],
            r"concat: output float32\[2305843009213693952\] has more than 2\^63 - 1 bytes",
        ),
        (Reshape((2**33, 2**33)), [(4,)], "reshape: output shape .* more than"),
        (
            Conv(Window((1,), ((2**31 - 1, 2**31 - 1),), (1,))),
            [(2**20, 1, 1), (2**20, 1, 1)],
            "conv: output shape .* more than",
        ),
    ],
)
def test_sizes_past_64_bits_are_refused_by_name(op: Op, shapes: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(*(Spec(s, float32) for s in shapes))


def test_ops_alone_take_arrays() -> None:
    """What makes tensors of them is imported when it is first needed."""
    program = "import numpy; from lamina import ops; print(ops.relu(numpy.float32([-1, 2])).tolist())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[0.0, 2.0]\n"


def test_inferred_specs_are_remembered_but_for_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are alike; what holds a program's functions and values is not kept alive by it."""
    x = Spec((3, 7, 11, 13), float32)
    assert core.inferred(Relu(), x) is core.inferred(Relu(), Spec((3, 7, 11, 13), float32))
    marker = StopGradient()
    assert core.inferred(marker, x) == (x,)
    assert core.inferred(marker, x) is not core.inferred(marker, x)


def test_result_type_is_what_is_computed_in() -> None:
    x = lm.ones((2,), dtype="int64")
    assert lm.result_type(x, 0.5) is lm.float32
    assert lm.result_type(x, 2) is lm.int64
    assert lm.result_type(lm.ones((2,), dtype="float16"), lm.tensor(1.0, dtype="float64")) is lm.float16
    assert lm.result_type(lm.ones((2,), dtype="float16"), lm.ones((2,), dtype="bfloat16")) is lm.float32
    with pytest.raises(TypeError, match="result_type"):
        lm.result_type("a", x)


def test_an_op_that_is_made_again_is_the_same_object() -> None:
    assert made(Add) is made(Add)
    assert made(Reshape, (2, 3)) is made(Reshape, (2, 3)) == Reshape((2, 3))
    assert made(Matmul, False, True) == Matmul(False, True) != made(Matmul, True, False)
    assert made(Concat, 1).axis is not made(Concat, True).axis  # equal, and yet not the same


class Unlike:
    """What is no operand."""


def test_the_kinds_of_operands_decide_however_often_they_met() -> None:
    x, value = lm.tensor([1.0]), lm.graph.Value(Spec((1,), float32))
    weight = lm.nn.Parameter(lm.ones(1))
    for _ in range(2):
        assert type(call(Add(), x, weight)) is type(call(Add(), weight, x)) is lm.Tensor
        assert isinstance(call(Add(), x, value), lm.graph.Value)
        assert isinstance(call(Add(), np.ones(1, np.float32), value), lm.graph.Value)
        assert call(Add(), np.ones(1, np.float32), [2.0]).tolist() == [3.0]
        with pytest.raises(TypeError, match="add: operand 0 must be a tensor"):
            call(Add(), Unlike(), np.ones(1, np.float32))
        with pytest.raises(TypeError, match="add: takes 2 operands, got 1"):
            call(Add(), x)
        with pytest.raises(TypeError, match="takes at least one operand, got none"):
            call(Concat(0))
