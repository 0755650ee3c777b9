"""Dtypes, specs and policies: names, sizes, what is refused, and how they print."""

import pickle
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lamina as lm
from lamina.spec import (
    DTYPES,
    DTypeError,
    Layout,
    Policy,
    ShapeError,
    Spec,
    as_dtype,
    bfloat16,
    bool_,
    can_cast,
    channels_last,
    current_policy,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    policy,
    promote_types,
    uint8,
)


def test_dtype_names() -> None:
    for dtype in DTYPES:
        for name in (dtype, dtype.name, dtype.short, dtype.numpy, str(dtype)):
            assert as_dtype(name) is dtype
        assert dtype.numpy.itemsize == dtype.itemsize
        assert repr(dtype) == f"lamina.{dtype.name}"
    assert as_dtype("half") is as_dtype("fp16") is float16
    assert as_dtype(np.float32) is as_dtype("float") is float32
    assert as_dtype(ml_dtypes.bfloat16) is bfloat16
    for wrong in ("float8", np.complex64, "U3"):
        with pytest.raises(DTypeError, match=r"unknown dtype .*; known: float64, float32"):
            as_dtype(wrong)


def test_a_dtype_stays_as_it_is() -> None:
    with pytest.raises(AttributeError, match="name of float32 cannot be changed"):
        float32.name = "other"
    assert float32.name == "float32"


def test_compute_types() -> None:
    assert [d.compute for d in (float64, float32, float16, bfloat16, int32)] == [
        float64, float32, float32, float32, int32,
    ]  # fmt: skip
    assert [d.is_float for d in (bfloat16, int8, bool_)] == [True, False, False]


@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_promotion_takes_the_higher_kind_and_the_wider_type(a: object, b: object) -> None:
    first, second = as_dtype(a), as_dtype(b)  # type: ignore[arg-type]
    found = promote_types(first, second)
    assert found == promote_types(second, first)
    assert found.category == max(first.category, second.category)
    alike = [d for d in (first, second) if d.category == found.category]
    assert found.itemsize >= max(d.itemsize for d in alike)
    assert promote_types(found, first) == found


def test_promotions() -> None:
    assert promote_types(float16, bfloat16) is float32
    assert promote_types(uint8, int8).name == "int16"
    assert promote_types(bfloat16, float64) is float64
    assert promote_types(float16, int64) is float16
    assert promote_types(bool_, uint8) is uint8


@pytest.mark.parametrize("value", [None, 5, "float128", b"float32", object, [float]])
def test_what_is_no_dtype_is_named(value: object) -> None:
    with pytest.raises(DTypeError, match="unknown dtype .*known: float64"):
        as_dtype(value)  # type: ignore[arg-type]


def test_spec_prints_shortly() -> None:
    spec = Spec((8, 64, 56, 56), float16)
    assert str(spec) == repr(spec) == "f16[8,64,56,56]"
    assert str(spec.with_tag("acdb")) == "f16[8,64,56,56]:acdb"
    assert str(spec.with_tag("abcd")) == "f16[8,64,56,56]"
    assert str(spec.with_tag("aBcd16b")) == "f16[8,64,56,56]:aBcd16b"
    assert str(Spec((2, 3), float32, Layout((8, 1)))) == "f32[2,3]:strides(8,1)"
    assert str(Spec((), bfloat16)) == "bf16[]"


def test_spec_sizes() -> None:
    spec = Spec((2, 20, 3, 3), float32)
    assert (spec.ndim, spec.numel, spec.nbytes) == (4, 360, 1440)
    assert spec.with_tag("aBcd16b").nbytes == 2 * 32 * 9 * 4
    assert Spec((2, 3), float32, Layout((8, 1))).nbytes == 44
    assert Spec((0, 5), float64).nbytes == 0
    assert Spec((), int64).nbytes == 8


def test_spec_layouts() -> None:
    spec = Spec((2, 4, 3, 3), float32)
    last = spec.with_tag("acdb")
    assert spec.layout is None
    assert spec.fixed.layout is not None
    assert last.open == spec
    assert last.fixed is last
    assert (spec.is_contiguous, spec.tag, last.is_contiguous, last.tag) == (True, "abcd", False, "acdb")
    assert spec.same_memory(spec.fixed)
    assert not spec.same_memory(last)
    assert not spec.same_memory(Spec(spec.shape, float16))
    thin = Spec((2, 1, 3, 3), float32)
    assert thin.same_memory(Spec(thin.shape, float32, channels_last(thin.shape)))
    assert Spec((0, 3), float32, Layout((1, 1))).is_contiguous
    assert len({spec, last, last.open, Spec((2, 4, 3, 3), float32)}) == 2


def test_spec_refuses() -> None:
    with pytest.raises(ShapeError, match=r"float64\[2305843009213693952\] has more than 2\^63 - 1 bytes"):
        Spec((2**61,), float64)
    assert Spec((2**62,), int8).numel == 2**62
    with pytest.raises(ShapeError, match=r"elements, more than 2\^63 - 1"):
        Spec((2**40, 2**40), int8)
    with pytest.raises(ShapeError, match="negative"):
        Spec((-1,), int8)
    with pytest.raises(ShapeError, match=r"does not fit shape \(2, 3\)"):
        Spec((2, 3), int8, Layout((1,)))
    with pytest.raises(AttributeError):
        Spec((2,), int8).shape = (3,)  # type: ignore[misc]


def test_policy() -> None:
    assert current_policy() == Policy()
    with policy(algorithm="benchmark", tf32=True) as outer:
        assert (outer.algorithm, outer.tf32) == ("fastest", True)
        with policy(deterministic=True) as inner:
            assert current_policy() is inner
            assert (inner.tf32, inner.deterministic) == (True, True)
        with policy(Policy(), workspace_limit=0) as fresh:
            assert fresh == Policy(workspace_limit=0)
        assert current_policy() is outer
    assert current_policy() == Policy()
    with pytest.raises(RuntimeError, match="stop"), policy(tf32=True):
        raise RuntimeError("stop")
    assert current_policy() == Policy()


def test_policy_belongs_to_its_thread() -> None:
    seen = []
    with policy(tf32=True):
        thread = threading.Thread(target=lambda: seen.append(current_policy().tf32))
        thread.start()
        thread.join()
    assert seen == [False]


def test_policy_refuses() -> None:
    with pytest.raises(TypeError, match="policy: algorithm must be a name, got None"):
        Policy(algorithm=None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="algorithm must be one of auto, heuristic, fastest, fallback, .* got 'fft'"
    ):
        Policy(algorithm="fft")
    with pytest.raises(ValueError, match="workspace_limit must be >= 0 bytes or None, got -1"):
        Policy(workspace_limit=-1)
    assert [Policy(algorithm=a).algorithm for a in ("guess", "time_once")] == ["heuristic", "fastest"]


def test_a_spec_means_the_same_in_another_process() -> None:
    """Hashes of strings differ between processes, so a hash that was looked up once must not travel."""
    spec = Spec((2, 3), float32, channels_last((2, 3)))
    assert hash(spec) == hash(Spec((2, 3), float32, channels_last((2, 3))))
    code = (
        "import pickle, sys\nfrom lamina.spec import Spec, channels_last, float32\n"
        "found = pickle.loads(sys.stdin.buffer.read())\n"
        "assert {Spec((2, 3), float32, channels_last((2, 3))): 1}[found] == 1"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spec), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_limits_of_types() -> None:
    known = lm.finfo(lm.float32)
    assert (known.bits, known.eps, known.max, known.min) == (
        32,
        2**-23,
        -known.min,
        float(np.finfo(np.float32).min),
    )
    assert (lm.finfo("bf16").eps, lm.finfo(lm.float16).max, lm.finfo(lm.float64).tiny) == (
        2**-7,
        65504,
        2**-1022,
    )
    assert lm.iinfo(lm.int8)[1:] == (-128, 127, "int8")
    assert lm.tensor([1.0]).dtype.is_floating_point
    with pytest.raises(DTypeError, match="finfo: int8 is no floating point type; iinfo"):
        lm.finfo("int8")
    with pytest.raises(DTypeError, match="iinfo: bool is no integer type; finfo"):
        lm.iinfo("bool")


def test_what_may_become_what() -> None:
    assert can_cast(float64, float16)
    assert can_cast(int64, uint8)
    assert can_cast(bool_, float16)
    assert not can_cast(float16, int64)
    assert not can_cast(uint8, bool_)
