"""Models from files, bytes and memory; what is none is refused with the path."""

import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from lamina.convert import from_onnx
from lamina.convert.onnx import OnnxError, OnnxGraph
from lamina.convert.onnx.reading import read_model
from lamina.spec import Spec, float32
from tests.helpers.onnx_models import model
from tests.helpers.onnx_mutants import mutants


def small() -> onnx.ModelProto:
    return model(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": (2,)}, {"y": (2,)}, w=np.ones(2, np.float32)
    )


def test_a_path_bytes_and_a_model_are_the_same(tmp_path: Path) -> None:
    proto = small()
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    sources = (tmp_path / "net.onnx", str(tmp_path / "net.onnx"), proto.SerializeToString(), proto)
    assert all(read_model(s)[0] == proto for s in sources)
    assert read_model(proto)[0] is not proto
    from_onnx(proto)
    assert proto == small()  # it is left as it is


@pytest.mark.parametrize("data", [b"", b"no model", b"\x80\x02}q\x00.", b"\x08\x0a" * 50])
def test_what_is_no_model_is_refused_with_its_path(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(OnnxError, match=r"net\.onnx: not an ONNX model"):
        from_onnx(path)


@pytest.mark.parametrize("source", [5, 10**30, None])
def test_another_kind_of_source(source: Any) -> None:
    with pytest.raises(TypeError, match="source must be a path, a file's bytes or an onnx.ModelProto, got"):
        from_onnx(source)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        from_onnx("nowhere.onnx")


def test_newer_versions_are_refused() -> None:
    newer, format_ = small(), small()
    newer.opset_import[0].version = 29
    format_.ir_version = 15
    with pytest.raises(OnnxError, match="the operators are of opset 29; 1 to 28 are read"):
        from_onnx(newer)
    with pytest.raises(OnnxError, match="the format is of version 15; up to 14 are read"):
        from_onnx(format_)


def test_nesting_without_end_is_refused() -> None:
    proto = small()
    inner = proto.graph.node.add(op_type="If", output=["z"])
    for _ in range(60):
        held = inner.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        inner = held.g.node.add(op_type="If", output=["z"])
    with pytest.raises(OnnxError, match="not an ONNX model"):
        from_onnx(proto.SerializeToString())


def seeds() -> list[bytes]:
    """Small models of convolutions, recurrences, attention, computed shapes, loops, quantized numbers."""
    rng = np.random.default_rng(0)
    make = helper.make_node

    def f(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [make("Add", ["a", "a"], ["b"]), make("Identity", ["go"], ["on"])], "body",
        [info("i", 7, []), info("go", 9, []), info("a", 1, None)], [info("on", 9, []), info("b", 1, None)],
    )  # fmt: skip
    found = [
        model(
            [make("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]), make("Relu", ["c"], ["r"]),
             make("BatchNormalization", ["r", "b", "b", "b", "v"], ["n"]),
             make("MaxPool", ["n"], ["p"], kernel_shape=[2, 2]), make("Shape", ["p"], ["s"]),
             make("Gather", ["s", "zero"], ["n0"]), make("Concat", ["n0", "rest"], ["to"], axis=0),
             make("Reshape", ["p", "to"], ["f"]), make("Gemm", ["f", "g"], ["y"])],
            {"x": (2, 3, 8, 8)}, {"y": (2, 5)}, w=f(4, 3, 3, 3), b=f(4), v=f(4) ** 2, g=f(16, 5),
            zero=np.array([0]), rest=np.array([-1]),
        ),
        model(
            [make("LSTM", ["x", "w", "r"], ["h"], hidden_size=3), make("Squeeze", ["h", "one"], ["q"]),
             make("Softmax", ["q"], ["y"], axis=-1)],
            {"x": (4, 2, 3)}, {"y": (4, 2, 3)}, w=f(1, 12, 3), r=f(1, 12, 3), one=np.array([1]),
        ),
        model(
            [make("Resize", ["x", "", "k"], ["u"]), make("Pad", ["u", "pads"], ["p"]),
             make("Slice", ["p", "from", "to"], ["s"]), make("Tile", ["s", "times"], ["t"]),
             make("Expand", ["t", "wide"], ["e"]), make("ConvTranspose", ["e", "w"], ["y"])],
            {"x": (1, 2, 4, 4)}, {"y": (1, 2, 9, 9)}, k=np.array([1, 1, 2, 2], "f"),
            pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), to=np.array([1]), times=np.array([1, 1, 1, 1]),
            wide=np.array([2, 1, 1, 1]), w=f(2, 2, 3, 3), **{"from": np.array([0])},
        ),
        model(
            [make("Loop", ["count", "", "x"], ["l"], body=body), make("ConstantOfShape", ["size"], ["o"]),
             make("Range", ["z", "count", "d"], ["r"]), make("Add", ["l", "o"], ["y"])],
            {"x": (3,)}, {"y": (3,)}, count=np.array(3), size=np.array([3]), z=np.array(0), d=np.array(1),
        ),
        model(
            [make("QuantizeLinear", ["x", "s", "z"], ["q"]), make("DequantizeLinear", ["q", "s", "z"], ["d"]),
             make("MatMul", ["d", "w"], ["m"]), make("LayerNormalization", ["m", "g", "g"], ["l"]),
             make("Transpose", ["l"], ["t"], perm=[0, 2, 1]),
             make("Einsum", ["l", "t"], ["y"], equation="bij,bjk->bik")],
            {"x": (2, 4, 4)}, {"y": (2, 4, 4)}, s=np.array(0.1, "f"), z=np.array(0, np.int8), w=f(4, 4), g=f(4),
        ),
    ]  # fmt: skip
    return [m.SerializeToString() for m in found]


#: What a file that cannot be read or run ends with; most are OnnxError.
TYPED = (OnnxError, ValueError, TypeError, NotImplementedError)


def opened(data: bytes, folder: Path) -> str:
    """Read a file, record it for small inputs, and compute it where that is little work; how it ended."""
    try:
        net = from_onnx(data, folder=folder).eval()
        rows = [v for v in onnx.load_from_string(data).graph.input if v.name in net.input_names]
        shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in rows}
        if any(min(s, default=1) < 0 or np.prod([float(n) for n in s]) > 1e5 for s in shapes.values()):
            return "large"
        recorded = OnnxGraph(onnx.load_from_string(data)).trace(
            {n: Spec(tuple(s), float32) for n, s in shapes.items()}
        )
        if (
            sum(v.spec.nbytes for n in recorded.nodes for v in n.outputs) > 1 << 24
            or len(recorded.nodes) > 500
        ):
            return "large"
        net(*(np.zeros(shapes[n], np.float32) for n in net.input_names))
    except TYPED as error:
        return type(error).__name__ if str(error) else "an error without a text"
    return "ran"


@pytest.mark.feature("B042")
@pytest.mark.parametrize("count", [100, pytest.param(2500, marks=pytest.mark.slow)])
def test_hostile_files_end_with_typed_errors(tmp_path: Path, count: int) -> None:
    """No crash, none takes ten seconds, and all together no more than 256 MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends: Counter[str] = Counter()
    for data in [*seeds(), *mutants(seeds(), count, seed=count)]:
        start = time.perf_counter()
        ends[opened(data, tmp_path)] += 1
        assert time.perf_counter() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB
    assert ends["ran"] >= len(seeds())
    assert "an error without a text" not in ends
    assert ends["OnnxError"] > count // 3
