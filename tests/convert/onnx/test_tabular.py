"""Operators on tables agree with onnxruntime: labels, features, linear models."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import lamina as lm
from lamina.convert import from_onnx
from lamina.convert.onnx import OnnxError, UnknownValueError, tabular
from tests.helpers.onnx_models import agrees, node_tests

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 4)).astype(np.float32)
WORDS = np.array(["a", "q", "b"], object)


@pytest.mark.parametrize("name", node_tests(tabular))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def model(
    operator: str, inputs: dict[str, Any], outputs: int = 1, version: int = 4, **attributes: Any
) -> onnx.ModelProto:
    """One node of the domain over inputs, outputs y0, y1, …"""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, list(inputs), names, domain="ai.onnx.ml", **attributes)
    kinds = {
        n: TensorProto.STRING if a.dtype == object else helper.np_dtype_to_tensor_dtype(a.dtype)
        for n, a in inputs.items()
    }
    infos = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in inputs.items()]
    graph = helper.make_graph([node], "net", infos, [onnx.ValueInfoProto(name=n) for n in names])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(
    operator: str, inputs: dict[str, Any], outputs: int = 1, version: int = 4, **attributes: Any
) -> None:
    """The same as onnxruntime, op by op, and compiled where nothing is a string."""
    proto = model(operator, inputs, outputs, version, **attributes)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, inputs)
    net = from_onnx(proto).eval()
    textual = any(np.asarray(a).dtype == object for a in (*inputs.values(), *wanted))
    for run in (net,) if textual else (net, lm.jit(net)):
        found = run(*inputs.values())
        for mine, theirs in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            if theirs.dtype == object:
                assert mine.numpy().tolist() == theirs.tolist()
            else:
                assert mine.dtype.numpy == theirs.dtype
                np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-5, atol=1e-6)


NUMBERS = np.array([[5, 7], [9, 1]])
REALS = np.array([1.5, 0, 9, np.nan], np.float32)


@pytest.mark.parametrize(("x", "attributes"), [
    (WORDS, {"keys_strings": ["a", "b"], "values_int64s": [3, 5], "default_int64": -7}),
    (WORDS, {"keys_strings": ["a", "b"], "values_strings": ["b", "a"], "default_string": "none"}),
    (WORDS, {"keys_strings": ["a", "b"], "values_floats": [1.5, 2.5]}),
    (NUMBERS, {"keys_int64s": [9, 5, 1], "values_int64s": [1, 2, 3], "default_int64": 42}),
    (NUMBERS, {"keys_int64s": [9, 5, 1], "values_strings": ["x", "y", "z"]}),
    (NUMBERS, {"keys_int64s": [9, 5, 1], "values_floats": [1.0, 2.0, 3.0]}),
    (REALS, {"keys_floats": [1.5, 0.0, float("nan")], "values_floats": [2.0, 3.0, 4.0], "default_float": 9.0}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("version", [2, 4])
def test_labels(x: Any, attributes: dict[str, Any], version: int) -> None:
    check("LabelEncoder", {"x": x}, version=version, **attributes)


def test_labels_by_tensors_and_by_the_first_version() -> None:
    held = {
        name: numpy_helper.from_array(np.array(v), name) for name, v in (("k", [1.0, 5.0]), ("v", [1.5, 2.5]))
    }
    rest = numpy_helper.from_array(np.array([7.0]), "d")
    x = np.array([5.0, 6.0, 1.0])
    check("LabelEncoder", {"x": x}, keys_tensor=held["k"], values_tensor=held["v"], default_tensor=rest)
    words = helper.make_tensor("k", TensorProto.STRING, [2], ["a", "b"])
    small = [numpy_helper.from_array(np.array(v, np.int16), "v") for v in ([1, 2], [7])]
    check("LabelEncoder", {"x": WORDS}, keys_tensor=words, values_tensor=small[0], default_tensor=small[1])
    check("LabelEncoder", {"x": WORDS}, version=1, classes_strings=["a", "b"], default_int64=-5)
    check(
        "LabelEncoder", {"x": np.array([1, 0, 7])}, version=1, classes_strings=["a", "b"], default_string="?"
    )


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_of_a_norm_of_one(norm: str) -> None:
    x = np.array([[1, -2, 3], [0, 0, 0], [-1, -2, -3]], np.float32)
    check("Normalizer", {"x": x}, norm=norm)


def test_features_are_scaled_filled_joined_and_spread() -> None:
    check("Scaler", {"x": X}, offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 1.0, 2.0, 3.0])
    check("Scaler", {"x": np.arange(12).reshape(3, 4)}, offset=[1.0], scale=[2.0])
    gaps = np.array([[1, np.nan, 3], [np.nan, 0, 0]], np.float32)
    check("Imputer", {"x": gaps}, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan"))
    whole = np.array([[1, -1, 3], [-1, 0, 0]])
    check("Imputer", {"x": whole}, imputed_value_int64s=[7], replaced_value_int64=-1)
    check("FeatureVectorizer", {"a": X[:, :2], "b": X[:, 2:]}, inputdimensions=[2, 2])
    check("OneHotEncoder", {"x": WORDS}, cats_strings=["a", "b"])
    check("OneHotEncoder", {"x": np.array([[1, 2], [3, 9]])}, cats_int64s=[1, 2, 3])


@pytest.mark.parametrize("after", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_models(after: str) -> None:
    w = RNG.normal(size=12).tolist()
    check(
        "LinearRegressor",
        {"x": X},
        coefficients=w[:8],
        intercepts=[0.1, 0.2],
        targets=2,
        post_transform=after,
    )
    for names in ({"classlabels_ints": [3, 5, 9]}, {"classlabels_strings": ["x", "y", "z"]}):
        given: Any = {"coefficients": w, "intercepts": [0.1, 0.2, 0.3], **names}
        check("LinearClassifier", {"x": X}, 2, 1, post_transform=after, **given)
    one: Any = {"coefficients": w[:4], "intercepts": [0.1], "classlabels_ints": [3, 5]}
    check("LinearClassifier", {"x": X}, 2, 1, post_transform=after, **one)


def test_what_is_refused() -> None:
    with pytest.raises(OnnxError, match="has 2 keys and 1 values"):
        from_onnx(model("LabelEncoder", {"x": NUMBERS}, keys_int64s=[1, 2], values_int64s=[1]))(NUMBERS)
    with pytest.raises(
        OnnxError, match="needs the attribute keys_tensor, or one of keys_strings, int64s, floats"
    ):
        from_onnx(model("LabelEncoder", {"x": NUMBERS}))(NUMBERS)
    with pytest.raises(OnnxError, match="norm must be one of MAX, L1, L2, got 'L3'"):
        from_onnx(model("Normalizer", {"x": X}, norm="L3"))(X)
    with pytest.raises(OnnxError, match="post_transform must be one of NONE, SOFTMAX, LOGISTIC, PROBIT"):
        from_onnx(model("LinearRegressor", {"x": X}, coefficients=[1.0] * 4, post_transform="HALF"))(X)
    words = model("LabelEncoder", {"x": NUMBERS}, keys_int64s=[1], values_strings=["one"])
    with pytest.raises(UnknownValueError, match="must be known while the graph is recorded"):
        lm.jit(from_onnx(words))(NUMBERS)
