"""Strings: ONNX's operators of them, as inputs and as constants, of graphs and of networks."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from lamina.convert import from_onnx
from lamina.convert.onnx import OnnxError, OnnxGraph

WORDS = np.array(["Monday", "tuesday", "Straße"], object)


def model(
    operator: str, *inputs: str, outputs: int = 1, held: Any = None, **attributes: Any
) -> onnx.ModelProto:
    """One node; held: its last input as an initializer."""
    names = [f"y{i}" for i in range(outputs)]
    words = [] if held is None else [helper.make_tensor(inputs[-1], TensorProto.STRING, np.shape(held), held)]
    node = helper.make_node(operator, list(inputs), names, **attributes)
    free = inputs[: len(inputs) - (held is not None)]
    graph = helper.make_graph(
        [node], "net", [helper.make_tensor_value_info(n, TensorProto.STRING, None) for n in free],
        [helper.make_tensor_value_info(n, 0, None) for n in names],
        words,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_stop_words_and_cases() -> None:
    for attributes, wanted in (
        ({"case_change_action": "UPPER", "stopwords": ["monday"]}, ["TUESDAY", "STRASSE"]),
        ({"is_case_sensitive": 1, "stopwords": ["monday", "tuesday"]}, ["Monday", "Straße"]),
        ({"case_change_action": "LOWER", "stopwords": ["MONDAY", "TUESDAY", "straße"]}, [""]),
    ):
        found = OnnxGraph(model("StringNormalizer", "x", **attributes))({"x": WORDS})["y0"]
        assert found.numpy().tolist() == wanted
    (row,) = OnnxGraph(model("StringNormalizer", "x"))({"x": WORDS[None]}).values()
    assert row.shape == (1, 3)


def test_strings_joined_with_a_constant_and_split_again() -> None:
    joined = from_onnx(model("StringConcat", "x", "w", held=[" a b"]))(WORDS)
    assert joined.numpy().tolist() == ["Monday a b", "tuesday a b", "Straße a b"]
    parts, counts = from_onnx(model("StringSplit", "x", outputs=2, maxsplit=1))(joined)
    assert parts.numpy().tolist()[0] == ["Monday", "a b"]
    assert counts.numpy().tolist() == [2, 2, 2]
    parts, counts = from_onnx(model("StringSplit", "x", outputs=2, delimiter="a"))(joined)
    assert parts.numpy().tolist()[2] == ["Str", "ße ", " b"]
    assert counts.numpy().tolist() == [3, 3, 3]


def test_strings_of_a_shape_that_the_model_says() -> None:
    proto = model("StringConcat", "x", "w", held=["!"])
    proto.graph.input[0].type.tensor_type.shape.dim.add()
    net = from_onnx(proto)
    assert net(WORDS).numpy().tolist() == ["Monday!", "tuesday!", "Straße!"]
    with pytest.raises(OnnxError, match="input 'x' has 1 axes in the model"):
        net(WORDS[None])


def test_strings_are_compared() -> None:
    found = OnnxGraph(model("Equal", "x", "w", held=["tuesday"]))({"x": WORDS})["y0"]
    assert found.numpy().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("proto", "x", "message"),
    [
        (model("StringNormalizer", "x"), np.ones(3, np.float32), "input 0 must be strings"),
        (model("StringNormalizer", "x"), np.full((2, 2), "a", object), r"shape \[C\] or \[1, C\]"),
        (model("StringNormalizer", "x", case_change_action="TITLE"), WORDS, "got 'TITLE'"),
        (model("Relu", "x"), WORDS, r"relu: input must be a tensor, .* got strings\[3\]"),
    ],
)
def test_what_is_refused(proto: onnx.ModelProto, x: Any, message: str) -> None:
    with pytest.raises((OnnxError, TypeError), match=message):
        OnnxGraph(proto)({"x": x})


def test_strings_without_sound_sizes_are_refused() -> None:
    proto = model("Equal", "x", "w", held=["a"])
    proto.graph.initializer[0].dims[:] = [7]
    with pytest.raises(OnnxError, match="has no sound sizes"):
        OnnxGraph(proto)


def cast(to: int, source: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """One Cast of inputs such as these."""
    text = source.dtype == object
    kind = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(source.dtype)
    proto = model("Cast", "x", to=to)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, None))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", to, None))
    return proto


def theirs(proto: onnx.ModelProto, x: np.ndarray[Any, Any]) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_])
def test_numbers_become_the_strings_that_onnxruntime_writes(dtype: Any) -> None:
    values = [1.5, 2, 1 / 3, 1e-7, np.nan, np.inf, -np.inf, -0.0, 60000, 0.1, 3.14159265358979, 1e-5]
    x = np.array(values if dtype in (np.float32, np.float64, np.float16) else [0, 1, 200]).astype(dtype)
    proto = cast(TensorProto.STRING, x)
    assert from_onnx(proto)(x).numpy().tolist() == theirs(proto, x).tolist()


@pytest.mark.parametrize(("to", "words"), [
    (TensorProto.FLOAT, ["1.5", "-2e3", "inf", "NaN", "-INF", " 3 ", "+4"]), (TensorProto.DOUBLE, ["0.1"]),
    (TensorProto.INT64, ["15", "-2", "+7"]), (TensorProto.INT8, ["-128"]), (TensorProto.BOOL, ["1", "0"]),
])  # fmt: skip
def test_strings_become_numbers(to: int, words: list[str]) -> None:
    x = np.array(words, object)
    proto = cast(to, x)
    found, wanted = from_onnx(proto)(x).numpy(), theirs(proto, x)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_words_that_are_no_numbers_are_named() -> None:
    x = np.array(["1", "many"], object)
    with pytest.raises(OnnxError, match="Cast: strings that are no float32: .*'many'"):
        from_onnx(cast(TensorProto.FLOAT, x))(x)
