"""DLPack both ways, without a copy, bfloat16 included; nothing leaks."""

import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import lamina as lm
from lamina.runtime import dlpack
from lamina.spec import DTYPES
from lamina.tensors import relayout

pytestmark = pytest.mark.feature("F011")
NUMPY = [d for d in DTYPES if d.name != "bfloat16"]


@pytest.mark.parametrize("dtype", [d.name for d in NUMPY])
def test_numpy_both_ways_shares_memory(dtype: str) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    x = lm.from_dlpack(array)
    assert x.dtype.name == dtype
    assert x.buffer.pointer == array.ctypes.data
    back = np.from_dlpack(x)
    assert back.ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(back, array)


def test_strides_travel() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T
    np.testing.assert_array_equal(np.from_dlpack(lm.from_dlpack(array)), array)


def test_bfloat16_between_tensors() -> None:
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    again = lm.from_dlpack(lm.tensor(array))
    assert again.dtype.name == "bfloat16"
    np.testing.assert_array_equal(again.numpy(), array)


def test_blocked_layouts_are_made_plain_for_others() -> None:
    array = np.random.default_rng(0).standard_normal((1, 20, 2, 2)).astype(np.float32)
    x = lm.tensor(array)
    x = relayout(x, x.spec.with_tag("aBcd16b"))
    np.testing.assert_array_equal(np.from_dlpack(x), array)


def test_the_owner_lives_as_long_as_the_consumer() -> None:
    array = np.arange(4.0)
    watch = weakref.ref(array)
    x = lm.from_dlpack(array)
    del array
    gc.collect()
    assert x.tolist() == [0, 1, 2, 3]
    del x
    gc.collect()
    assert watch() is None


def test_capsules_that_nobody_consumes_are_freed() -> None:
    x = lm.zeros(4)
    before = len(dlpack._exported)
    for _ in range(100):
        x.__dlpack__()
    assert len(dlpack._exported) == before
    consumer = np.from_dlpack(x)
    assert len(dlpack._exported) == before + 1
    del consumer
    assert len(dlpack._exported) == before


def test_what_is_no_dlpack_is_refused() -> None:
    with pytest.raises(TypeError, match="has no __dlpack__"):
        lm.from_dlpack([1, 2])
    with pytest.raises(TypeError, match="not a DLPack capsule"):
        dlpack.adopt(object())
    capsule = lm.zeros(1).__dlpack__()
    dlpack.adopt(capsule)
    with pytest.raises(TypeError, match="still to be consumed"):
        dlpack.adopt(capsule)
    with pytest.raises(BufferError, match="move it with"):
        lm.zeros(1).__dlpack__(dl_device=(dlpack.CUDA, 0))
    with pytest.raises(AttributeError, match="is on cpu"):
        lm.zeros(1).__cuda_array_interface__  # noqa: B018


@pytest.mark.torch
def test_torch_both_ways() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        theirs = torch.tensor([[1, 0], [0, 1]]).to(kind)
        ours = lm.from_dlpack(theirs)
        assert ours.buffer.pointer == theirs.data_ptr()
        again = torch.from_dlpack(ours)
        assert again.data_ptr() == theirs.data_ptr()
        assert torch.equal(again, theirs)


@pytest.mark.gpu
@pytest.mark.feature("F011")
def test_torch_and_cupy_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.randn(4, 5, device="cuda").to(torch.bfloat16)
    ours = lm.from_dlpack(theirs)
    assert str(ours.device) == "cuda:0"
    assert ours.buffer.pointer == theirs.data_ptr()
    assert torch.equal(torch.from_dlpack(ours + ours), theirs + theirs)
    cupy = pytest.importorskip("cupy")
    array = cupy.arange(6, dtype=cupy.float32).reshape(2, 3)
    doubled = lm.from_dlpack(array) * 2.0
    np.testing.assert_array_equal(cupy.asnumpy(cupy.from_dlpack(doubled)), cupy.asnumpy(array) * 2)
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(doubled)), cupy.asnumpy(array) * 2)


@pytest.mark.gpu
@pytest.mark.feature("F011")
def test_jax_on_the_gpu() -> None:
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(6.0).astype(jax.numpy.bfloat16)
    ours = lm.from_dlpack(array)
    np.testing.assert_array_equal(ours.numpy().astype(np.float32), np.arange(6.0))
    back = jax.dlpack.from_dlpack(ours + ours)
    np.testing.assert_array_equal(np.asarray(back.astype(jax.numpy.float32)), np.arange(6.0) * 2)


#: DLPack's header: kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool by NumPy's kinds, and what NumPy does not have.
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
OTHERS = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12, "float8_e8m0fnu": 14}


@pytest.mark.parametrize("name", dlpack.TYPES)
def test_codes_and_bits_are_those_of_the_header(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    assert dlpack.TYPES[name] == (OTHERS[name] if name in OTHERS else CODES[kind.kind], 8 * kind.itemsize)


@pytest.mark.parametrize(("copied", "read_only", "flags"), [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)])
def test_a_capsule_says_whether_it_is_a_copy_and_may_be_written(
    copied: int, read_only: int, flags: int
) -> None:
    array = np.arange(6.0)
    capsule = dlpack.export(
        array.ctypes.data, (2, 3), (3, 1), "float64", (dlpack.CPU, 0), array,
        max_version=(1, 0), copied=bool(copied), read_only=bool(read_only),
    )  # fmt: skip
    (managed, *_) = list(dlpack._exported.values())[-1]
    assert (managed.flags, managed.major, managed.minor) == (flags, 1, 0)
    shared = dlpack.adopt(capsule)
    assert (shared.read_only, shared.shape, shared.pointer) == (bool(read_only), (2, 3), array.ctypes.data)


def test_a_consumer_of_before_1_0_gets_a_plain_capsule_of_what_may_be_written() -> None:
    array = np.arange(6.0)
    where = array.ctypes.data, (6,), (1,), "float64", (dlpack.CPU, 0), array
    for version in (None, (0, 9)):
        assert "dltensor_versioned" not in repr(dlpack.export(*where, max_version=version))
        with pytest.raises(BufferError, match="DLPack 1.0 or later only; share a copy"):
            dlpack.export(*where, max_version=version, read_only=True)
    assert "dltensor_versioned" in repr(dlpack.export(*where, max_version=(2, 0)))
    with pytest.raises(BufferError, match="DLPack has no type for int4"):
        dlpack.export(array.ctypes.data, (6,), (1,), "int4", (dlpack.CPU, 0), array)


def test_at_the_interpreters_end_nothing_is_given_back() -> None:
    """The producer's code, and what calls it, may be gone by then."""
    given = list[int]()
    callback = dlpack._Deleter(given.append)
    owner = dlpack._Imported(7, ctypes.cast(callback, ctypes.c_void_p).value)
    owner.__del__(lambda: True)
    assert given == []
    del owner
    assert given == [7]
