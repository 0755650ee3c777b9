"""Tensors: values, devices, layouts, errors."""

import copy
import ctypes
import math
import pickle
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, tensors
from lamina.backends import Call, NonDeterministicError, Plan
from lamina.ops import core
from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives.update import SgdUpdate
from lamina.spec import FLOATS, DTypeError, Layout, ShapeError, Spec, float32
from lamina.tensors import (
    CPU,
    EagerCall,
    Tensor,
    as_tensor,
    relayout,
    run_in_place,
    tensors_version,
    writable,
)
from tests.helpers.second_device import SECOND, known


def test_a_copy_of_a_part_is_the_same_part() -> None:
    x = lm.zeros(2, 3)
    row = x[0]
    x.fill_(1)
    copied = copy.copy(row)
    assert copied.tolist() == [1, 1, 1]
    copied.fill_(2)
    assert (x.tolist(), row.tolist()) == ([[2, 2, 2], [1, 1, 1]], [2, 2, 2])
    x.zero_()
    assert copied.tolist() == row.tolist() == [0, 0, 0]
    end = x[1][1:]
    copy.copy(end).fill_(4)
    assert (x.tolist(), end.tolist()) == ([[0, 0, 0], [0, 4, 4]], [4, 4])


def test_python_numbers_become_float32_and_arrays_keep_their_dtype() -> None:
    assert lm.tensor([1.0, 2.0]).dtype == float32
    assert lm.tensor(np.zeros(2)).dtype.name == "float64"
    assert lm.tensor([1, 2]).dtype.name == "int64"
    assert lm.tensor([1, 2], dtype="bf16").dtype.name == "bfloat16"


def test_arrays_of_the_host_go_where_they_are_used() -> None:
    """Beside a tensor on another device; also what ops made of them alone, and numbers of rank 0, as in torch."""
    x, array = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.float32([[1], [2]])
    with known():
        there = lm.tensor(x, device=SECOND)
        for other in (array, as_tensor(array), ops.relu(array) + as_tensor(array) - array, lm.tensor(2.0)):
            for y in (there * other, other * there):
                assert y.device is SECOND
                np.testing.assert_array_equal(y.numpy(), x * np.asarray(other))
        slope = lm.grad(lambda x: ops.sum(x * ops.exp(array)))(there)
        assert slope.device is SECOND


def test_tensors_that_were_put_on_a_device_stay_there() -> None:
    with known():
        there, here = lm.ones((2, 3), device=SECOND), lm.ones((2, 3))
        for other in (
            here,
            ops.relu(np.ones((2, 3), np.float32)) + here,
            nn.Parameter(np.ones((2, 3), np.float32)),
            writable(np.ones((2, 3), np.float32)),  # its memory is what is to be written
        ):
            with pytest.raises(ValueError, match="add: the operands are on cpu, cpu; move them with"):
                there + other


def test_tensor_copies_and_adoption_shares() -> None:
    array = np.zeros(3, np.float32)
    copied, shared = lm.tensor(array), lm.from_dlpack(array)
    array[0] = 7
    assert copied.tolist() == [0, 0, 0]
    assert shared.tolist() == [7, 0, 0]


def test_strided_arrays_are_adopted_as_they_lie() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    np.testing.assert_array_equal((ops.neg(array) * 1.0).numpy(force=True), -array)
    backwards = array[::-1]
    np.testing.assert_array_equal(ops.neg(backwards).numpy(), -backwards)


def test_makers() -> None:
    assert lm.zeros((2, 2)).tolist() == [[0, 0], [0, 0]]
    assert lm.ones(2, dtype="int32").tolist() == [1, 1]
    assert lm.full((), 2.5).item() == 2.5
    for value, dtype in ((1, lm.int64), (True, lm.bool_), (2.5, lm.float32), (np.float64(1), lm.float32)):
        assert lm.full(size=(2,), fill_value=value).dtype == dtype
    assert lm.full((2,), 1, dtype="float16").dtype == lm.float16
    assert lm.tensor(np.float64(1)).dtype == lm.float64
    assert lm.tensor(1.0).dtype == lm.float32
    assert lm.empty((3, 0)).numel() == 0


def test_copy_keeps_identity_and_converts() -> None:
    x = lm.zeros(3)
    assert x.copy_(np.array([1, 2, 3])) is x
    assert x.tolist() == [1, 2, 3]
    for values in (np.zeros(2), np.zeros((1, 3)), np.zeros(0)):
        with pytest.raises(ShapeError, match=r"cannot write shape \(.*\) into a tensor of shape \(3,\)"):
            x.copy_(values)


def test_copy_broadcasts() -> None:
    """Numbers, rows and columns; into tensors and their parts; with the gradient of what is repeated."""
    x = lm.zeros((2, 3))
    assert x.copy_(lm.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 2, 3]] * 2
    assert x.copy_(lm.tensor([[4], [5]])).tolist() == [[4] * 3, [5] * 3]
    x[:, 1].copy_(lm.tensor(6.0))
    x.t()[2].copy_(np.float64(7))
    assert x.tolist() == [[4, 6, 7], [5, 6, 7]]
    write = lm.jit(lambda values: x.copy_(values) * 2)
    assert write(lm.tensor([1.0, 2.0, 3.0])).tolist() == [[2, 4, 6]] * 2
    assert x.tolist() == [[1, 2, 3]] * 2
    assert lm.grad(lambda v: ops.zeros_like(x).copy_(v).sum())(lm.ones(3)).tolist() == [2, 2, 2]


def test_layouts_change_memory_not_values() -> None:
    array = np.random.default_rng(0).standard_normal((2, 20, 3, 5)).astype(np.float32)
    x = lm.tensor(array)
    for tag in ("acdb", "aBcd16b", "ABcd16b16a"):
        y = relayout(x, x.spec.with_tag(tag))
        assert y.spec.tag == tag
        np.testing.assert_array_equal(y.numpy(), array)
        np.testing.assert_array_equal(ops.relu(y).numpy(), np.maximum(array, 0))
        np.testing.assert_array_equal(y.contiguous().numpy(), array)


@pytest.mark.feature("F033")
def test_repr_shows_values_limits_layout_and_device() -> None:
    assert repr(lm.tensor([1.0, 2.0])) == "Tensor([1., 2.], f32[2], cpu)"
    text = repr(lm.tensor(np.linspace(-3, 5, 1000, dtype=np.float32)))
    assert "..." in text
    assert "-3 … 5" in text
    assert "1 not finite" in repr(lm.tensor(np.full(100, 1.0, np.float32)).copy_([np.nan] + [1.0] * 99))


def test_items_and_truth() -> None:
    assert lm.tensor(3).item() == 3
    assert int(lm.tensor(3)) == 3
    assert float(lm.tensor([2.5])) == 2.5
    assert not lm.tensor(0.0)
    with pytest.raises(ShapeError, match="only one element"):
        lm.zeros(2).item()
    with pytest.raises(TypeError, match="cannot be an index"):
        [1, 2][lm.tensor(1.0)]
    assert [1, 2][lm.tensor(1)] == 2


@pytest.mark.parametrize("shape", [(2,), (0,)])
def test_several_elements_have_no_one_truth_value(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        RuntimeError, match=r"bool: a tensor of shape .* x.any\(\) or x.all\(\)"
    ):  # as torch's
        bool(lm.zeros(shape))


def test_a_length_is_that_of_the_first_axis() -> None:
    assert [len(lm.zeros(*shape)) for shape in ((3,), (2, 5), (0, 4), (1, 1, 7))] == [3, 2, 0, 1]
    assert [row.tolist() for row in lm.tensor([[1.0, 2.0], [3.0, 4.0]])] == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="a tensor of rank 0 has no length"):
        len(lm.tensor(3.0))


def test_formats_are_those_of_the_number() -> None:
    x = lm.tensor([2.5])
    assert (f"{x:.3f}", f"{lm.tensor(7):04d}", f"{x}") == ("2.500", "0007", str(x))
    for wrong in (lm.zeros(2), lm.zeros(0)):
        with pytest.raises(TypeError, match=r"cannot be formatted with '\.1f': that is for one number"):
            f"{wrong:.1f}"


def test_errors_name_op_argument_and_shapes() -> None:
    with pytest.raises(ShapeError, match=r"add: shapes \(2,\) and \(3,\) do not broadcast"):
        lm.zeros(2) + lm.zeros(3)
    assert (lm.zeros(2) + lm.zeros(2, dtype="float64")).dtype == lm.float64
    with pytest.raises(DTypeError, match="sub: dtype bool is not among"):
        lm.zeros(2, dtype="bool") - lm.zeros(2, dtype="bool")
    assert f"{lm.tensor(2.5):.2f}" == "2.50"
    with pytest.raises(TypeError, match="is not an array"):
        ops.relu(object())
    with pytest.raises(ShapeError, match="2\\^63"):
        lm.empty((2**40, 2**40))
    with pytest.raises(ShapeError, match="negative"):
        lm.zeros((-1,))


@pytest.mark.parametrize("given", [(3,), (2, 3), (2, 3, 4), ([1.0, 2.0],)])
def test_the_class_is_no_factory_and_names_those(given: tuple[Any, ...]) -> None:
    """PyTorch's older programs call torch.Tensor(2, 3) and torch.Tensor([1, 2])."""
    with pytest.raises(TypeError, match=r"Tensor\(.*\): .*lamina\.empty\(2, 3\).*lamina\.tensor\(values\)"):
        lm.Tensor(*given)


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ShapeError, match="takes 16 bytes, the buffer has 8"):
        Tensor(lm.device("cpu").allocate(8), Spec((4,), float32))


@pytest.mark.parametrize("dtype", [d.name for d in FLOATS])
def test_arithmetic_in_every_float_type(dtype: str) -> None:
    x = lm.tensor([1.0, -2.0, 3.0], dtype=dtype)
    y = (x * 2.0 + 1.0) / 4.0 - x
    assert y.dtype.name == dtype
    np.testing.assert_allclose(y.numpy().astype(np.float64), [-0.25, 1.25, -1.25])


def test_an_op_on_the_same_memory_is_bound_once_per_thread() -> None:
    module = sys.modules["lamina.tensors"]
    x = lm.tensor(np.arange(-3, 3), "float32")
    expected = np.maximum(np.arange(-3, 3), 0)

    def hits() -> int:
        found: int = module._bound.run_of.cache_info().hits
        return found

    def loop() -> list[int]:
        counts = []
        for _ in range(4):
            assert (
                ops.relu(x).numpy() == expected
            ).all()  # dropped at once: the next result lies there again
            counts.append(hits())
        return counts

    counts = loop()
    assert counts[3] > counts[0]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loop).result()[0] == 0
    x.copy_(-np.arange(-3, 3))
    assert (ops.relu(x).numpy() == np.maximum(-np.arange(-3, 3), 0)).all()


# ---- copies, pickles


KINDS = ["float32", "float16", "bfloat16", "float64", "int64", "int8", "uint8", "bool", "float8_e4m3fn"]


@pytest.mark.parametrize("dtype", KINDS)
def test_copies_and_pickles_hold_the_values(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(lm.tensor([0], dtype).dtype.numpy)
    for source in (lm.tensor(values), as_tensor(values), lm.tensor(values[0, 0]), lm.tensor(values[:0])):
        expected = source.numpy().copy()
        for made in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
            assert (made.spec.open, made.device) == (source.spec.open, source.device)
            np.testing.assert_array_equal(made.numpy(), expected)
            assert not source.spec.numel or made.buffer.pointer != source.buffer.pointer


def test_a_deep_copy_outlives_its_source() -> None:
    a = lm.full((1000,), 3.0)
    b = copy.deepcopy(a)
    a.copy_(np.zeros(1000))
    del a
    junk = [np.full(1000, 7, np.float32) for _ in range(50)]
    assert set(b.tolist()) == {3.0}
    assert len(junk) == 50


def test_a_shallow_copy_shares_memory() -> None:
    a = lm.zeros(2)
    b = copy.copy(a)
    b.copy_([1, 2])
    assert (type(b), a.tolist()) == (Tensor, [1, 2])


def test_deep_copies_of_any_layout() -> None:
    x = lm.tensor(np.arange(2 * 20 * 9, dtype=np.float32).reshape(2, 20, 3, 3))
    strided = lm.from_dlpack(np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3])
    for source in (relayout(x, x.spec.with_tag("aBcd16b")), relayout(x, x.spec.with_tag("acdb")), strided):
        np.testing.assert_array_equal(copy.deepcopy(source).numpy(), source.numpy())
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).numpy(), source.numpy())
    assert copy.deepcopy(strided).spec == strided.spec.open.fixed  # without the gaps


def test_a_deep_copy_within_a_recorded_function_has_the_values_of_that_moment() -> None:
    """Of each call of what is compiled, and after what was written before in the same call."""
    net = lm.nn.Linear(2, 1, bias=False)

    def change(x: Any) -> Any:
        net.weight.data.mul_(2)
        twin = copy.deepcopy(net)
        net.weight.data.add_(1)
        return lm.ops.sum(twin(x) + net(x))

    x = lm.ones(1, 2)
    for way in (change, lm.grad(change), lm.jit(change), lm.jit(lm.grad(change))):
        for _ in range(2):
            before = net.weight.numpy().sum()
            found = way(x)
            np.testing.assert_allclose(net.weight.numpy().sum(), 2 * before + 2, rtol=1e-5)
            np.testing.assert_allclose(found.numpy().sum(), 4 * before + 2, rtol=1e-5)


def test_a_pickle_is_read_in_another_process() -> None:
    data = pickle.dumps([lm.ones(200_000), lm.tensor([1, 2])])
    code = (
        "import pickle, sys; a, b = pickle.load(sys.stdin.buffer); "
        "assert set(a.tolist()) == {1.0}; assert b.tolist() == [1, 2]"
    )
    assert subprocess.run([sys.executable, "-c", code], input=data, check=False).returncode == 0


def test_a_tensor_of_a_device_that_is_absent_is_loaded_to_the_cpu() -> None:
    make, arguments = lm.ones(2).__reduce__()
    found = make(*arguments[:2], "cuda:97", arguments[3])
    assert (str(found.device), found.tolist()) == ("cpu", [1, 1])


# ---- read-only memory


def _shared_read_only() -> list[Any]:
    from_file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - lives as long as the map
    from_file.write(bytes(16))
    from_file.flush()
    locked = np.zeros(4, np.float32)
    locked.flags.writeable = False
    return [
        np.frombuffer(bytes(16), np.float32),
        np.memmap(from_file, np.float32, "r"),
        np.broadcast_to(np.zeros(1, np.float32), (4,)),
        locked,
        lm.from_dlpack(locked),
    ]


@pytest.mark.parametrize("index", range(5))
def test_read_only_travels_with_the_tensor(index: int) -> None:
    source = _shared_read_only()[index]
    for x in (ops.identity(source), lm.from_dlpack(source), ops.reshape(source, (2, 2))):
        assert x.numpy().sum() == 0
        if x.buffer.pointer != as_tensor(source).buffer.pointer:
            continue  # a copy, which may be written
        assert x.read_only
        assert not x.numpy().flags.writeable
        assert not np.from_dlpack(x).flags.writeable
        with pytest.raises(ValueError, match="cannot be written: (its memory is read-only|several elements)"):
            x.copy_(np.ones(x.shape))
        with pytest.raises(BufferError, match="read-only memory"):
            x.__dlpack__()
        assert np.asarray(source).sum() == 0
        assert not lm.tensor(x).read_only


def test_bytes_stay_as_they_are() -> None:
    data = bytes(16)
    x = ops.identity(np.frombuffer(data, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        lm.runtime.copy(x.buffer, np.ones(4, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        lm.runtime.memset(x.buffer, 255)
    assert data == bytes(16)


def test_overlapping_targets_are_refused() -> None:
    window = np.lib.stride_tricks.as_strided(np.zeros(5, np.float32), (3, 3), (4, 4), writeable=True)
    torch_like = as_tensor(window)
    with pytest.raises(ValueError, match="several elements share memory"):
        torch_like.copy_(np.ones((3, 3)))
    assert not torch_like.numpy().flags.writeable
    for shape, strides in (
        ((2, 3), (3, 1)),
        ((2, 3), (1, 2)),
        ((1, 5), (0, 1)),
        ((2, 2, 2), (9, 3, 1)),
        ((0, 3), (0, 0)),
    ):
        assert not Spec(shape, float32, Layout(strides)).overlaps


def test_what_lies_between_the_elements_is_not_written() -> None:
    array = np.zeros((4, 4), np.float32)
    lm.from_dlpack(array[::2, ::2]).copy_(np.ones((2, 2)))
    expected = np.zeros((4, 4), np.float32)
    expected[::2, ::2] = 1
    np.testing.assert_array_equal(array, expected)


def test_updated_state_leaves_read_only_memory_alone() -> None:
    data = np.ones(4, np.float32).tobytes()
    p = as_tensor(np.frombuffer(data, np.float32))
    run = lm.compile(lm.trace(lambda p: (p + 1.0,), p), "cpu", donate={0: 0})
    run.load({0: p})
    run()
    assert p.tolist() == [2.0] * 4
    assert data == np.ones(4, np.float32).tobytes()
    assert not p.read_only


def test_what_may_be_written_is_the_tensor_itself_unless_it_is_read_only() -> None:
    x = lm.tensor([1.0, 2.0])
    assert writable(x) is x
    array = np.ones(4, np.float32)
    own = writable(array)
    own.copy_(own * 3)
    assert array.tolist() == own.tolist() == [3.0] * 4
    data = np.ones(4, np.float32).tobytes()
    shown = as_tensor(np.frombuffer(data, np.float32))
    apart = writable(shown)
    assert not apart.read_only
    apart.copy_(apart * 3)
    assert apart.tolist() == [3.0] * 4
    assert data == np.ones(4, np.float32).tobytes()


def test_sizes_are_given_one_by_one_or_as_a_sequence() -> None:
    assert [x.shape for x in (lm.zeros(1, 2), lm.ones((1, 2)), lm.empty([3]), lm.zeros(3), lm.ones())] == [
        (1, 2), (1, 2), (3,), (3,), (),
    ]  # fmt: skip
    with pytest.raises(TypeError, match="size must be an int or a sequence of ints"):
        lm.zeros(1, 2.5)  # type: ignore[arg-type]


def test_full_tensors_are_of_the_kind_of_their_value() -> None:
    values: dict[Any, str] = {
        True: "bool",
        3: "int64",
        np.uint8(4): "int64",
        np.int8(-5): "int64",
        2.5: "float32",
    }
    for value, dtype in values.items():
        found = lm.full((2, 1), value)
        assert (found.dtype.name, found.tolist()) == (dtype, [[value], [value]])
        assert lm.full([3], value, dtype="float16").dtype.name == "float16"


def test_numbers_in_a_row() -> None:
    assert (lm.arange(3).tolist(), lm.arange(3).dtype) == ([0, 1, 2], lm.int64)
    assert (lm.arange(1, 2, 0.25).tolist(), lm.arange(2.0).dtype) == ([1.0, 1.25, 1.5, 1.75], lm.float32)
    assert (lm.arange(5, 0, -2).tolist(), lm.arange(2, dtype="int8").dtype) == ([5, 3, 1], lm.int8)
    assert lm.linspace(0, 1, 5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert (lm.linspace(0, 9, 1).tolist(), lm.linspace(0, 9, 0).shape) == ([0.0], (0,))
    assert lm.linspace(lm.tensor(1.0), 2, 2).tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="linspace: end must be a number or a tensor of one, got 'a'"):
        lm.linspace(0, "a", 2)  # the type checker takes any
    assert lm.logspace(0, 3, 4).tolist() == [1.0, 10.0, 100.0, 1000.0]
    assert lm.eye(2, 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    np.testing.assert_array_equal(lm.tril_indices(3, 4, 1).numpy(), np.stack(np.tril_indices(3, 1, 4)))
    np.testing.assert_array_equal(lm.triu_indices(3, 2, -1).numpy(), np.stack(np.triu_indices(3, -1, 2)))
    for call in (lambda: lm.arange(3, 0), lambda: lm.arange(0, 3, 0), lambda: lm.linspace(0, 1, -1)):
        with pytest.raises(ValueError, match="arange: step|linspace: steps"):
            call()
    with pytest.raises(ShapeError, match="eye: sizes must be >= 0"):
        lm.eye(-1)


def test_notebooks_see_what_a_tensor_is() -> None:
    found = lm.tensor([[1.5, 2.5]])._repr_html_()
    assert "f32[1,2] on cpu, 8 B" in found
    assert "1.5" in found


def test_tensors_of_another_dtype_are_made_within_a_trace() -> None:
    held = lm.tensor([1.0, 2.0])

    def loss(x: lm.Tensor) -> lm.Tensor:
        return (x * lm.tensor(np.float32([3, 4]), "float64")).sum() + held.to(dtype="float64").sum()

    value, grad = lm.value_and_grad(loss)(lm.tensor(np.float64([1, 1])))
    assert value.item() == 10
    assert grad.tolist() == [3, 4]
    assert lm.jit(loss)(lm.tensor(np.float64([1, 1]))).item() == 10


def test_an_array_that_is_not_row_major_is_copied_right_while_a_derivative_records() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    def f(w: Any) -> Any:
        return ops.sum(lm.tensor(x[:, 0]) * w)

    value, slope = lm.value_and_grad(f)(lm.ones(4))
    assert value.item() == x[:, 0].sum()
    np.testing.assert_array_equal(slope.numpy(), x[:, 0].sum(0))
    np.testing.assert_array_equal(lm.jit(lm.grad(f))(lm.ones(4)).numpy(), x[:, 0].sum(0))


def test_the_version_of_all_tensors_tells_of_every_write_and_move() -> None:
    x, y = lm.tensor(np.zeros((4, 3), np.float32)), lm.ones((4, 3))
    part = x[1]

    def changes(do: Any) -> bool:
        before = tensors_version()
        do()
        return tensors_version() != before

    assert not changes(lambda: (x + y).numpy())
    assert not changes(lambda: lm.tensor(x).contiguous())
    assert changes(lambda: x.copy_(y))
    assert changes(lambda: part.fill_(2))
    assert changes(lambda: x.add_(y))
    assert changes(lambda: x.t_())
    assert changes(lambda: y.move_into(lm.runtime.Device("cpu").allocate(y.nbytes), y.spec))
    assert changes(lambda: nn.Linear(2, 2).to(dtype="float64"))
    step = lm.compile(lm.trace(lambda p: (p + 1.0,), y), "cpu", donate={0: 0})
    step.load({0: y})
    assert changes(step)


def test_a_tensor_moves_into_another_layout_without_a_copy_between(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    held, target = lm.tensor(x), Spec(x.shape, float32).with_tag("acdb")
    place = lm.runtime.Device("cpu").allocate(x.nbytes)
    with monkeypatch.context() as patch:
        patch.setattr("lamina.tensors.copy", None)
        held.move_into(place, target)
    assert held.buffer is place
    assert held.spec == target
    np.testing.assert_array_equal(held.numpy(), x)
    held.move_into(place, Spec(x.shape, float32).fixed)  # where it lies itself
    np.testing.assert_array_equal(held.numpy(), x)


@pytest.mark.parametrize("workspace", [0, 1, 300])
def test_a_kernel_gets_the_scratch_memory_that_its_plan_asks_for(workspace: int) -> None:
    calls = list[Call]()

    def make(call: Call) -> Any:
        def run() -> None:
            calls.append(call)
            if call.workspace:
                ctypes.memset(call.workspace, 1, workspace)
            ctypes.memmove(call.outputs[0], call.inputs[0], 12)

        return run

    x = lm.tensor(np.arange(3, dtype=np.float32))
    plan = Plan((x.spec.fixed,), (x.spec.fixed,), make, workspace=workspace)
    (y,) = EagerCall(CPU, plan, [x.spec])([x])
    assert y.tolist() == [0, 1, 2]
    assert [bool(call.workspace) for call in calls] == [workspace > 0]


@pytest.mark.parametrize("shape", [(64,), (8, 8), (65,), (5, 13), (20, 30), (2, 3, 100), (1, 500)])
def test_of_what_is_on_a_gpu_the_ends_alone_are_fetched(shape: tuple[int, ...]) -> None:
    """As text; what has at most 64 elements is shown whole."""
    x = lm.tensor(np.arange(math.prod(shape), dtype=np.float32).reshape(shape))
    few = math.prod(shape) <= 64

    def values() -> Any:
        assert few
        return x.numpy()

    far: Any = SimpleNamespace(
        device=SimpleNamespace(kind="cuda"),
        spec=x.spec,
        dtype=x.dtype,
        shape=x.shape,
        buffer=x.buffer,
        _values=values,
    )
    limit = 64 if few else 0
    wanted = np.array2string(
        x.numpy().astype(np.float64),
        precision=4,
        separator=", ",
        threshold=limit,
        edgeitems=3,
        prefix="Tensor(",
    )
    assert tensors._values_text(far) == wanted


@pytest.mark.parametrize("data", ["abc", None, {"a": 1}, [[1, 2], [3]], [2**70], b"abc", object()])
def test_what_is_no_array(data: Any) -> None:
    with pytest.raises(
        TypeError, match="tensor: data must be numbers, lists of one length nested in each other, or an"
    ):
        lm.tensor(data)


def test_a_row_is_written_without_a_copy_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    x = lm.zeros(3, 4)
    monkeypatch.setattr(type(x), "at", property(lambda x: pytest.fail("the whole is made anew")))
    x[1] = 2.0
    x[2, 1:] = np.ones(3, np.float32)
    assert x.tolist() == [[0, 0, 0, 0], [2, 2, 2, 2], [0, 1, 1, 1]]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]
)
def test_parts_are_written_where_they_lie_as_the_op_writes_them(dtype: str) -> None:
    keys: list[Any] = [
        0, -1, slice(1, None), slice(None, None, 2), ..., None, (slice(None), 1), (..., -1), (1, 2),
        (0, None, slice(2)), (slice(1, 1), 0), slice(-2, None),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for key in keys:
        start = lm.tensor(rng.integers(0, 2, (3, 4))).to(dtype=dtype)
        region = np.zeros((3, 4))[key]
        for given in (
            1,
            True,
            0.5,
            np.asarray(region + 1),
            lm.ones(np.shape(region), dtype=dtype),
            lm.ones(1),
        ):
            x, whole = start.clone(), start.at[key].set(given)
            part, version = x[1], x.version
            x[key] = given
            assert x.version > version
            np.testing.assert_array_equal(x.numpy(), whole.numpy())
            np.testing.assert_array_equal(part.numpy(), x.numpy()[1])


def test_a_part_that_cannot_be_written_is_named_and_nothing_is_written() -> None:
    x = lm.zeros(3, 4)
    for key, given in ((3, 1.0), ((0, 0, 0), 1.0), (0, np.ones(5, np.float32))):
        with pytest.raises((IndexError, ValueError)):
            x[key] = given
    assert x.sum().item() == 0
    x[1:] = x[:-1] + 1
    x[1:] = x[:-1]  # shares memory with what is written
    assert x[:, 0].tolist() == [0, 0, 1]
    big = np.iinfo(np.int32).max + 1
    y = lm.zeros(3, dtype="int32")
    with pytest.raises((OverflowError, ValueError)):
        y[0] = big


def test_a_number_beside_a_tensor_is_the_one_that_was_written() -> None:
    """What is kept of numbers is found by their bits: 0.0 equals -0.0, and 1 equals True."""
    x = lm.tensor([1.0, 2.0])
    for number in (0.0, -0.0, 0.0, -0.0):
        np.testing.assert_array_equal(np.signbit((x * number).numpy()), [np.signbit(number)] * 2)
    whole = lm.tensor([1, 2])
    assert [(whole + number).dtype.name for number in (True, 1, 1.0)] == ["int64", "int64", "float32"]
    assert [(whole + number).tolist() for number in (True, 1, 1.0)] == [[2, 3]] * 3
    assert np.isnan((x + float("nan")).numpy()).all()
    assert (x * np.array(2.0, ">f4")).tolist() == [2.0, 4.0]


def test_what_is_made_of_a_number_may_be_written() -> None:
    two = np.array(2.0, np.float32)
    x = lm.tensor([1.0])
    assert (x * two).tolist() == [2.0]
    for own in (ops.reshape(two.copy(), (1,)), ops.neg(ops.neg(two)), ops.add(two, 0.0)):
        own.add_(1.0)
    assert (x * two).tolist() == [2.0]
    assert two == 2.0
    two += 1
    assert (x * two).tolist() == [3.0]


def _op_class(factor: float) -> type[Op]:
    """A class as a notebook's cell defines it, anew each time that it runs."""

    @dataclass(frozen=True)
    class CellDefined(Op):
        varies = "" if factor < 4 else "so it says"

        def infer(self, x: Spec) -> tuple[Spec]:
            return (x.open,)

        def reference(self, x: Any) -> tuple[Any]:
            return (x * np.float32(factor),)

    return CellDefined


def test_an_op_that_is_defined_anew_is_another_one() -> None:
    x = lm.tensor([1.0, 2.0])
    try:
        for factor in (2.0, 3.0, 2.0):
            kind = _op_class(factor)
            for _ in range(3):
                assert core.call(core.made(kind), x).tolist() == [factor, 2 * factor]
    finally:
        del REGISTRY["cell_defined"]


def test_settings_hold_for_ops_that_ran_before_under_others() -> None:
    x = lm.tensor([1.0, 2.0])
    try:
        op = _op_class(4.0)()
        for _ in range(2):
            assert core.call(op, x).tolist() == [4.0, 8.0]
            with lm.policy(deterministic=True), pytest.raises(NonDeterministicError, match="so it says"):
                core.call(op, x)
            lm.use_deterministic_algorithms(True)
            try:
                with pytest.raises(NonDeterministicError, match="so it says"):
                    core.call(op, x)
            finally:
                lm.use_deterministic_algorithms(False)
            with lm.policy(check_finite=True), pytest.raises(lm.NonFiniteError):
                ops.log(x - x)
            assert ops.log(x - x).tolist() == [-math.inf] * 2
    finally:
        del REGISTRY["cell_defined"]


def test_an_op_reads_operands_as_they_lie() -> None:
    """In the same shape and dtype, in other layouts, read-only, and where a whole was written meanwhile."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = lm.tensor(values)
    turned = lm.tensor(values.T.copy()).transpose(0, 1)
    part = lm.tensor(np.stack([values, values]))[1]
    for _ in range(3):
        for a in (rows, turned, lm.from_dlpack(values), as_tensor(np.asfortranarray(values)), part):
            for b in (rows, turned):
                np.testing.assert_array_equal((a + b).numpy(), values * 2)
                np.testing.assert_array_equal((a @ b.T).numpy(), values @ values.T)
    whole = lm.zeros(2, 3)
    part = whole[1]
    for i in range(3):
        whole.copy_(np.full((2, 3), i, np.float32))
        assert (part + 1).tolist() == [i + 1] * 3


def test_threads_share_what_is_known_of_ops_and_no_memory() -> None:
    wrong = list[float]()
    begin = threading.Barrier(4)

    def work(seed: int) -> None:
        x = lm.tensor(np.full(8, seed, np.float32))
        begin.wait()
        for i in range(300):
            y = (x + x) * 2 - x
            if y.tolist() != [3.0 * seed] * 8 or y[i % 8 :].sum().item() != 3.0 * seed * (8 - i % 8):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_op_in_the_memory_of_its_operands() -> None:
    op = SgdUpdate(0.0, 0.0, 0.0, False)
    x, slope, rate = lm.tensor([1.0, 2.0]), lm.tensor([1.0, 1.0]), lm.tensor(0.5)
    held = x.buffer.pointer
    kept = [lm.zeros(2)]
    assert run_in_place(op, [x, slope, *kept, rate])
    assert (x.tolist(), x.buffer.pointer, x.version) == ([0.5, 1.5], held, 1)
    whole = lm.ones(2, 2)
    for others in ([whole[0], slope], [x, np.ones(2, np.float32)], [x, x]):
        assert not run_in_place(op, [*others, *kept, rate])
    with lm.policy(check_finite=True):
        assert not run_in_place(op, [x, slope, *kept, rate])
    assert x.tolist() == [0.5, 1.5]
    assert whole.tolist() == [[1, 1], [1, 1]]
