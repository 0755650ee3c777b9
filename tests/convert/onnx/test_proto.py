"""Element types, tensors and attributes of ONNX files."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lamina.convert.onnx.node import OnnxError
from lamina.convert.onnx.proto import attribute, dtype_of, tensor
from lamina.spec import DTYPES, float8_e4m3fn


@pytest.mark.parametrize("dtype", [*DTYPES, float8_e4m3fn], ids=str)
def test_every_dtype_of_lamina_is_read(dtype: object) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype.numpy))
    assert dtype_of(code) == dtype
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    found = tensor(numpy_helper.from_array(array, "w"))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy().astype(float), array.astype(float))


@pytest.mark.parametrize(
    "code", [TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.UINT16, TensorProto.INT4, 999]
)
def test_an_element_type_without_counterpart_is_refused(code: int) -> None:
    with pytest.raises(OnnxError, match=rf"element type {code} of ONNX has no counterpart in Lamina"):
        dtype_of(code)


def test_bfloat16_keeps_its_bits() -> None:
    array = np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16)
    found = tensor(numpy_helper.from_array(array, "w")).numpy()
    assert found.view(np.uint16).tolist() == array.view(np.uint16).tolist()


def test_data_outside_of_the_model_are_named() -> None:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL, dims=[2])
    with pytest.raises(OnnxError, match=r"tensor 'w' is kept in another file"):
        tensor(proto)


@pytest.mark.parametrize("value", [3, 0.5, "text", [1, 2], [0.5, 1.5], ["a", "b"]])
def test_attributes_are_python_values(value: object) -> None:
    assert attribute(helper.make_attribute("a", value)) == value


def test_a_tensor_attribute_is_a_tensor_and_a_graph_stays() -> None:
    held = attribute(helper.make_attribute("value", numpy_helper.from_array(np.array([1, 2]))))
    assert held.numpy().tolist() == [1, 2]
    graph = helper.make_graph([], "body", [], [])
    assert isinstance(attribute(helper.make_attribute("body", graph)), onnx.GraphProto)
