"""Graphs in files: round trips, and files that are not graphs."""

import json
from pathlib import Path

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.files import read_safetensors, save_safetensors
from lamina.graph import Graph, load, save, trace
from lamina.graph.ir.serialize import GraphFileError, decode_op, encode_op
from lamina.ops.core import REGISTRY


def example() -> tuple[Graph, list[np.ndarray]]:  # type: ignore[type-arg]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 9), (4, 3, 3, 3)))

    def f(x, w):  # type: ignore[no-untyped-def]
        with lm.policy(tf32=True):
            y = ops.conv2d(x, w, stride=2, padding=(1, 0))
        y = ops.max_pool2d(ops.leaky_relu(y, 0.1), 2)
        return ops.softmax(
            ops.flatten(y, 1) * lm.tensor(np.linspace(0, 1, y.shape[1] * 4, dtype=np.float32)), 1
        )

    return trace(f, x, w, names=["image", "filter"]), [x, w]


@pytest.mark.feature("F109")
def test_a_saved_graph_comes_back_equal(tmp_path: Path) -> None:
    graph, arrays = example()
    save(graph, tmp_path / "net.lamina")
    again = load(tmp_path / "net.lamina")
    assert str(again) == str(graph)
    assert [n.policy for n in again.nodes] == [n.policy for n in graph.nodes]
    np.testing.assert_array_equal(again(*arrays)[0].numpy(), graph(*arrays)[0].numpy())


@pytest.mark.parametrize(
    "name", sorted(n for n, op_class in REGISTRY.items() if op_class.__module__.startswith("lamina.ops."))
)
def test_every_op_survives_json(name: str) -> None:
    for sample in REGISTRY[name].samples():
        text = json.loads(json.dumps(encode_op(sample.op)))
        assert decode_op(name, text) == sample.op


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.lamina"
    graph, _ = example()
    save(graph, path)
    good = path.read_bytes()
    for bad in (
        b"",
        b"12345",
        good[:100],
        b"\xff" * 64,
        good[:-3],
        good.replace(b"lamina-graph-1", b"lamina-graph-9"),
    ):
        path.write_bytes(bad)
        with pytest.raises(GraphFileError, match="net.lamina"):
            load(path)


def edited(path: Path, change) -> None:  # type: ignore[no-untyped-def]
    tensors, metadata = read_safetensors(path)
    text = json.loads(metadata["graph"])
    change(text)
    save_safetensors(tensors, path, metadata | {"graph": json.dumps(text)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["nodes"][0].__setitem__(0, "system"), "unknown op 'system'"),
        (lambda t: t["nodes"][0][1].__setitem__("evil", 1), "has fields"),
        (lambda t: t["inputs"][0].__setitem__(1, [2**40, 2**40]), "2\\^63"),
        (lambda t: t["inputs"][0].__setitem__(1, [-1, 3]), "negative"),
        (lambda t: t["outputs"].__setitem__(0, "n99.0"), "not a sound graph"),
        (lambda t: t["nodes"][0][2].__setitem__(0, "n5.0"), "not a sound graph"),
        (lambda t: t.pop("nodes"), "not a sound graph"),
        (lambda t: t["nodes"][0].__setitem__(3, {"algorithm": "rm"}), "algorithm"),
    ],
)
def test_edited_files_are_refused(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "net.lamina"
    save(example()[0], path)
    edited(path, change)
    with pytest.raises(GraphFileError, match=message):
        load(path)


def test_fields_are_checked_against_their_types() -> None:
    good = encode_op(next(iter(REGISTRY["softmax"].samples())).op)
    for key in good:
        with pytest.raises(GraphFileError, match=f"softmax.{key}"):
            decode_op("softmax", good | {key: {"value": "Path", "fields": {}}})
