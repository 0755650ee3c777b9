"""Python functions of own ops: what they are given."""

import numpy as np
import pytest

import lamina as lm
from lamina.backends.custom import DeviceArray, run_plan
from lamina.ops.core import bind
from lamina.runtime import Device, dlpack
from lamina.spec import Layout, Spec, bfloat16, float32
from tests.helpers.own_ops import CALLS, RowMax


@pytest.mark.feature("F105")
def test_on_a_cpu_the_function_fills_numpy_arrays() -> None:
    CALLS.clear()
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
    most, where = bind(RowMax(), x)
    assert [np.ndarray] == CALLS
    np.testing.assert_array_equal(most.numpy(), x.max(1))
    np.testing.assert_array_equal(where.numpy().argmax(1), x.argmax(1))


def test_the_plan_asks_for_rows() -> None:
    turned = Spec((4, 5), float32, Layout((1, 4)))
    plan = run_plan(RowMax(), [turned], Device("cpu"))
    assert [s.physical.strides for s in (*plan.inputs, *plan.outputs)] == [(5, 1), (1,), (5, 1)]
    assert plan.label == "python row_max"


def test_the_arrays_of_a_gpu_speak_both_protocols() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = DeviceArray(values.ctypes.data, Spec((2, 3), float32), Device("cuda:1"), 77)
    assert (array.shape, array.dtype, array.nbytes) == ((2, 3), "float32", 24)
    assert array.__dlpack_device__() == (dlpack.CUDA, 1)
    shared = dlpack.adopt(array.__dlpack__(stream=77, max_version=(1, 0)))
    assert (shared.pointer, shared.shape, shared.dtype, shared.device_id) == (
        values.ctypes.data,
        (2, 3),
        "float32",
        1,
    )
    facts = array.__cuda_array_interface__
    assert (facts["data"], facts["typestr"], facts["shape"]) == ((values.ctypes.data, False), "<f4", (2, 3))
    half = DeviceArray(values.ctypes.data, Spec((2, 3), bfloat16), Device("cuda:0"), 0)
    with pytest.raises(AttributeError, match="use DLPack"):
        _ = half.__cuda_array_interface__
    assert repr(half) == "DeviceArray(bf16[2,3], cuda:0)"


def test_a_capsule_keeps_the_array() -> None:
    made = lm.zeros(2)
    array = DeviceArray(made.buffer.pointer, made.spec, Device("cuda:0"), 0)
    assert dlpack.adopt(array.__dlpack__()).shape == (2,)
