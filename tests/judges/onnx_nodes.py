"""ONNX's own tests, given to `lamina.convert.onnx`: of its operators (a graph of one node or of few each), of small
models, of models that PyTorch exported, and of nine known networks with constant weights.

    python -m tests.judges.onnx_nodes               how many agree, by operator, and what is wrong
    python -m tests.judges.onnx_nodes write         writes tests/judges/onnx_nodes_table.json, which a test holds
    python -m tests.judges.onnx_nodes show Resize   each test of one operator that is refused or wrong

Tests whose name says that a function body was expanded are left out: what is left are the direct ones. The tests of
operators have their names, the others their folder's in front: real/test_resnet50. A test's
inputs are inputs of the traced graph; what decides shapes is given as a constant. The graph is compiled for the CPU;
and where that cannot be (numbers decide what is run, values are sequences) the nodes compute on tensors at once.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina.convert.onnx import OnnxError, OnnxGraph, UnknownValueError
from lamina.convert.onnx.node import is_text
from lamina.convert.onnx.sequence import ABSENT
from lamina.spec import DTypeError, ShapeError, Spec, as_dtype

TABLE = Path(__file__).with_name("onnx_nodes_table.json")
#: What a refusal is: the documented errors.
TYPED = (OnnxError, ShapeError, DTypeError, TypeError, ValueError, IndexError, NotImplementedError)
#: Operators that draw random numbers: shapes and dtypes are compared.
NO_VALUES = ("Bernoulli",)


#: Folders of ONNX's tests beside those of operators.
FOLDERS = ("simple", "real", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class FileCase:
    """A test whose model and data lie in files."""

    name: str
    folder: Path
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def file(self) -> Path:
        """The model's; the known networks lie in a folder of their own."""
        inside = self.folder / "model.onnx"
        light = self.folder.parent.parent / "light"
        return inside if inside.exists() else light / f"light_{self.folder.name[len('test_') :]}.onnx"

    @property
    def model(self) -> Any:
        """The model."""
        import onnx

        return onnx.load(self.file)

    @property
    def data_sets(self) -> list[tuple[list[Any], list[Any]]]:
        """Inputs and outputs; known networks have a ramp as their input."""
        graph = self.model.graph
        if self.file.parent == self.folder:
            return [
                (_files(data, "input", graph.input), _files(data, "output", graph.output))
                for data in sorted(self.folder.glob("test_data_set_*"))
            ]
        held = {t.name for t in graph.initializer}
        (image,) = (v for v in graph.input if v.name not in held)
        shape = [d.dim_value for d in image.type.tensor_type.shape.dim]
        ramp = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
        wanted = _read(self.file.with_name(f"{self.file.stem}_output_0.pb"), graph.output[0])
        return [([ramp], [wanted])]


def _files(folder: Path, kind: str, infos: Any) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [_read(folder / f"{kind}_{i}.pb", infos[i]) for i in range(count)]


def _read(file: Path, info: Any) -> Any:
    """A value of a test as an array, or a list of them."""
    import onnx

    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return onnx.numpy_helper.to_list(_sequence(file))
    proto = onnx.TensorProto()
    proto.ParseFromString(file.read_bytes())
    return onnx.numpy_helper.to_array(proto)


def _sequence(file: Path) -> Any:
    import onnx

    proto = onnx.SequenceProto()
    proto.ParseFromString(file.read_bytes())
    return proto


@cache
def cases() -> dict[str, Any]:
    """The direct tests by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import DATA_DIR, load_model_tests

        found = {t.name: t for t in load_model_tests(kind="node") if "_expanded" not in t.name}
    for kind in FOLDERS:
        for folder in sorted((Path(DATA_DIR) / kind).glob("test_*")):
            found[f"{kind}/{folder.name}"] = FileCase(f"{kind}/{folder.name}", folder)
    return found


def operator(case: Any) -> str:
    """The operator that a test is of: its only node's, else the last one's; of other tests the folder."""
    if isinstance(case, FileCase):
        return case.name.partition("/")[0]
    return str(case.model.graph.node[-1].op_type)


def data_sets(case: Any) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """(inputs by name, expected outputs) as arrays, and lists of them."""
    graph = case.model.graph
    held = {t.name for t in graph.initializer} if isinstance(case, FileCase) else set()
    names = [v.name for v in graph.input if v.name not in held]
    for inputs, outputs in case.data_sets:
        yield dict(zip(names, map(_array, inputs), strict=False)), [_array(o) for o in outputs]


def _array(value: Any) -> Any:
    """A tensor of the test as an array; sequences as lists of them, what is absent as that."""
    import onnx

    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_array(v) for v in value]
    return np.asarray(value) if isinstance(value, np.generic) else value


def compare(case: Any) -> tuple[str, str]:
    """("agree", ""), ("refused", the error) or ("wrong", what differs)."""
    try:
        graph = OnnxGraph(case.model)
        for inputs, wanted in data_sets(case):
            for value in _arrays([*inputs.values(), *wanted]):
                if not is_text(value):
                    as_dtype(value.dtype)
            found = run(graph, inputs, all(isinstance(y, np.ndarray) for y in wanted))
            for name, mine, theirs in zip(graph.outputs, found, wanted, strict=True):
                if text := _differences(case, mine, theirs):
                    return "wrong", f"{case.name}: {name}: {text}"
    except TYPED as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "wrong", f"{case.name}: {type(error).__name__}: {error}"
    return "agree", ""


def _arrays(values: Sequence[Any]) -> Iterator[Any]:
    """The arrays among values, those of lists too."""
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        elif value is not None:
            yield value


def _differences(case: Any, mine: Any, theirs: Any) -> str:
    """What differs of a value, of a list one by one."""
    if not isinstance(theirs, list):
        return _difference(case, np.asarray(mine), theirs)
    if len(mine) != len(theirs):
        return f"gives {len(mine)} tensors, wanted {len(theirs)}"
    return next((t for a, b in zip(mine, theirs, strict=True) if (t := _differences(case, a, b))), "")


def _computed(graph: OnnxGraph, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of the nodes, computed at once."""
    found = graph({n: _given(x) for n, x in inputs.items()})
    return [_taken(found[n]) for n in graph.outputs]


def _given(x: Any) -> Any:
    if isinstance(x, list):
        return [_given(y) for y in x]
    return ABSENT if x is None else x if is_text(x) else lm.tensor(x)


def _taken(x: Any) -> Any:
    return [_taken(y) for y in x] if isinstance(x, list) else x.numpy()


def run(graph: OnnxGraph, inputs: Mapping[str, Any], compiled: bool = True) -> list[Any]:
    """The outputs: of the compiled graph, with constants for the inputs that must be known while it is traced."""
    if not compiled or any(is_text(x) or not isinstance(x, np.ndarray) for x in inputs.values()):
        return _computed(graph, inputs)
    given: dict[str, Any] = {n: Spec(x.shape, as_dtype(x.dtype)) for n, x in inputs.items()}
    while True:
        try:
            recorded = graph.trace(given)
            break
        except UnknownValueError as error:
            if error.input not in inputs or not isinstance(given[error.input], Spec):
                return _computed(graph, inputs)
            given[error.input] = inputs[error.input]
    executable = lm.compile(recorded, "cpu")
    arrays = [lm.tensor(inputs[n]) for n, s in given.items() if isinstance(s, Spec)]
    results = executable(*arrays)
    return [r.numpy() for r in (results if isinstance(results, (tuple, list)) else (results,))]


def _difference(case: Any, mine: Any, theirs: Any) -> str:
    """What differs within the test's own tolerances, "" when nothing does."""
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return f"gives {mine.dtype}{list(mine.shape)}, wanted {theirs.dtype}{list(theirs.shape)}"
    if operator(case) in NO_VALUES:
        return ""
    if is_text(theirs):
        return "" if mine.tolist() == theirs.tolist() else f"gives {mine.tolist()}, wanted {theirs.tolist()}"
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    half = str(theirs.dtype) in ("float16", "bfloat16")
    rtol = max(case.rtol, 8e-3 if str(theirs.dtype) == "bfloat16" else 2e-3 if half else 0)
    # Sums round in units of the largest number among the results.
    finite = np.abs(b[np.isfinite(b)])
    atol = max(case.atol, 2e-3 if half else 2e-7 * finite.max(initial=0))
    if np.allclose(a, b, rtol, atol, equal_nan=True):
        return ""
    with np.errstate(all="ignore"):
        return f"differs by up to {np.nanmax(np.abs(a - b)):.3g}"


def judge(select: Callable[[str], bool] = lambda name: True) -> dict[str, tuple[str, str]]:
    """Verdict and text by test, of the operators that are selected."""
    return {name: compare(case) for name, case in cases().items() if select(operator(case))}


@cache
def agreeing() -> dict[str, list[str]]:
    """Operator (folder, of tests in files) -> names of its tests that agreed when the table was written."""
    found: dict[str, list[str]] = json.loads(TABLE.read_text(encoding="utf-8"))["agree"]
    return found


def reason(text: str) -> str:
    """A refusal without the name of its node and its numbers: what is listed."""
    return re.sub(r"\d+", "n", re.sub(r"^\w+: (\w+ '[^']*': )?", "", text))[:100]


def summary(found: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """What is held: the tests that agree, by operator, and the reason of each refusal."""
    agree: dict[str, list[str]] = {}
    for name in sorted(n for n, (verdict, _) in found.items() if verdict == "agree"):
        agree.setdefault(operator(cases()[name]), []).append(name)
    return {
        "agree": dict(sorted(agree.items())),
        "refused": {n: reason(text) for n, (verdict, text) in sorted(found.items()) if verdict == "refused"},
    }


def main(arguments: list[str]) -> None:
    command, *names = arguments or ["table"]
    found = judge((lambda name: name in names) if command == "show" else lambda name: True)
    if command == "write":
        TABLE.write_text(json.dumps(summary(found), indent=0) + "\n")
    counts: dict[str, Counter[str]] = {}
    for name, (verdict, text) in found.items():
        counts.setdefault(operator(cases()[name]), Counter())[verdict] += 1
        if verdict == "wrong" or (command == "show" and text):
            print(f"{verdict}: {name}: {text}")
    for name, count in sorted(counts.items()):
        print(f"{name:32} {count['agree']:4} agree {count['refused']:4} refused {count['wrong']:4} wrong")
    total = Counter(verdict for verdict, _ in found.values())
    print(f"{total['agree']} agree, {total['refused']} refused, {total['wrong']} wrong")


if __name__ == "__main__":
    main(sys.argv[1:])
