"""Element types, tensors and attributes of ONNX files."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lamina.convert.onnx.module import from_onnx
from lamina.convert.onnx.node import OnnxError
from lamina.convert.onnx.proto import attribute, dense, dtype_of, tensor
from lamina.spec import DTYPES, float8_e4m3fn


@pytest.mark.parametrize("dtype", [*DTYPES, float8_e4m3fn], ids=str)
def test_every_dtype_of_lamina_is_read(dtype: object) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype.numpy))
    assert dtype_of(code) == dtype
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    found = tensor(numpy_helper.from_array(array, "w"))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy().astype(float), array.astype(float))


@pytest.mark.parametrize(("code", "name"), [
    (TensorProto.STRING, "string"), (TensorProto.COMPLEX64, "complex64"), (TensorProto.UINT16, "uint16"),
    (TensorProto.INT4, "int4"), (999, "999"),
])  # fmt: skip
def test_an_element_type_without_counterpart_is_refused(code: int, name: str) -> None:
    with pytest.raises(OnnxError, match=rf"element type {name} of ONNX has no counterpart in Lamina"):
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


def sparse(places: object, dims: tuple[int, ...] = (2, 3)) -> onnx.SparseTensorProto:
    """Two numbers at these places."""
    return onnx.SparseTensorProto(
        values=numpy_helper.from_array(np.float32([1.5, 2]), "s"),
        indices=numpy_helper.from_array(np.array(places, np.int64)),
        dims=dims,
    )


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_tensors_are_read_with_their_zeros(places: object) -> None:
    wanted = [[0, 1.5, 0], [0, 0, 2]]
    assert tensor(dense(sparse(places))).numpy().tolist() == wanted
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse(places)),
        helper.make_node("Sum", ["x", "s", "c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y])
    graph.sparse_initializer.append(sparse(places))
    net = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert net(np.ones((2, 3), np.float32)).numpy().tolist() == [[1, 4, 1], [1, 1, 5]]
    assert not net.state_dict()
    assert len(net.to_onnx().graph.sparse_initializer) == 1


@pytest.mark.parametrize(
    ("places", "dims", "text"),
    [
        ([1, 6], (2, 3), "outside of it"),
        ([-1, 2], (2, 3), "outside of it"),
        ([[0, 1], [2, 0]], (2, 3), "outside of it"),
        ([1], (2, 3), "no place for each"),
        ([1, 2], (-2, 3), "no sound sizes"),
        ([1, 2], (1 << 40, 1 << 20), "is refused: at most"),
    ],
)
def test_sparse_tensors_that_are_damaged_are_named(places: object, dims: tuple[int, ...], text: str) -> None:
    with pytest.raises(OnnxError, match=text):
        dense(sparse(places, dims))
