"""The generator: what is committed is what it emits, sealed, and complete."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from codegen import check, emit, history, report, seal
from codegen.model import RETURNED, Library, Type, version
from tests.helpers import ROOT

pytestmark = pytest.mark.feature("B001", "B004")


@pytest.fixture(scope="module", params=["cudnn", "dnnl"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return emit.modules()


def test_emitting_changes_nothing() -> None:
    assert check.problems() == []


def test_the_report_holds() -> None:
    assert report.problems() == []


def test_an_edit_by_hand_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in emit.modules().items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(check, "TARGET", tmp_path)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.problems() == []
    broken = tmp_path / "cudnn.py"
    broken.write_text(broken.read_text().replace("CUDNN_DATA_FLOAT = 0", "CUDNN_DATA_FLOAT = 1"))
    (tmp_path / "errors.py").write_text(seal.sealed('"""Old."""\n'))
    (tmp_path / "dnnl.py").unlink()
    found = "\n".join(check.problems())
    assert "cudnn.py: broken seal" in found
    assert "errors.py: out of date" in found
    assert "dnnl.py: missing" in found


def test_seals() -> None:
    text = seal.sealed("x = 1\n")
    assert text.startswith("# seal: ")
    assert not seal.broken(text)
    assert seal.broken(text + "\n")
    assert seal.broken("x = 1\n")


def test_counts_of_the_headers() -> None:
    rows = report.rows()
    assert rows["cudnn", "functions"][:2] == (239, 239)
    assert rows["cudnn", "enums"][:2] == (73, 73)
    assert rows["cudnn", "constants"][:2] == (960, 960)
    assert rows["dnnl", "functions"][:2] == (210, 210)
    assert rows["dnnl", "constants"][:2] == (1838, 1838)


def test_every_function_of_the_facts_is_defined(library: Library, texts: dict[str, str]) -> None:
    tree = ast.parse(texts[f"{library.name}.py"])
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for function in library.functions:
        given = [a.arg for a in defined[function.name].args.args]
        expected = [p.name for p in function.parameters if p.role not in RETURNED and p.role != "hidden"]
        assert given == expected, function.name
        assert ast.get_docstring(defined[function.name])


def test_every_constant_has_its_value(library: Library) -> None:
    module: Any = __import__(f"lamina.c.{library.name}", fromlist=["_"])
    for constants in library.enums.values():
        for constant in constants:
            assert getattr(module, constant["name"]) == constant["value"]


def test_overrides_name_things_that_exist(library: Library) -> None:
    """A fact written by hand for something that the headers no longer have is an error at the next version."""
    parameters = {f["name"]: {p["name"] for p in f["parameters"]} for f in library.facts["functions"]}
    tables = ("scaling", "element", "length", "hidden", "device", "host", "default", "text", "floats")
    tables += ("handles", "structures", "addresses", "buffer", "query", "blob", "pairs", "structure_out")
    for table in tables:
        for function, entry in library.overrides.get(table, {}).items():
            named = set(entry) if isinstance(entry, dict | list) else set()
            if table == "scaling":
                named = {entry}
            assert named <= parameters[function], f"[{library.name}.{table}] {function}"


def test_since_agrees_with_the_older_headers() -> None:
    library = Library("cudnn")
    rows = [*library.facts["functions"], *(c for e in library.facts["enums"] for c in e["constants"])]
    newest = version(library.facts["version"])
    assert {"9.0.0", "9.19.0"} <= set(library.history)
    for text, lacking in library.history.items():
        absent = {*lacking["functions"], *lacking["constants"]}
        for facts in rows:
            since = library.since(facts["name"], facts)
            if facts["name"] in absent:
                assert since is not None
                assert version(text) < since <= newest, facts["name"]
            elif since is not None:
                assert since[:2] <= version(text)[:2], f"{facts['name']} is in {text}, since says {since}"


def test_types_are_taken_apart() -> None:
    assert Type.of("const cudnnTensorDescriptor_t") == Type("cudnnTensorDescriptor_t", 0, True, False)
    assert Type.of("const int[]") == Type("int", 0, True, True)
    assert Type.of("void **") == Type("void", 2, False, False)
    assert Type.of("unsigned long long *") == Type("unsigned long long", 1, False, False)


def test_scaling_without_a_descriptor_is_refused() -> None:
    library = Library("cudnn")
    del library.overrides["scaling"]["cudnnAddTensor"]
    with pytest.raises(KeyError, match=r"\[cudnn.scaling\] lacks cudnnAddTensor \(parameter alpha\)"):
        _ = library.functions


def test_generated_files_hold_no_sentence_of_the_headers(texts: dict[str, str]) -> None:
    for text in texts.values():
        assert "@param" not in text
        assert "@brief" not in text
    facts = "".join(path.read_text() for path in (ROOT / "codegen" / "api").glob("*.json"))
    assert "comment" not in facts


def facts(release: str, functions: str, **constants: int) -> dict[str, Any]:
    rows = [{"name": name, "value": value} for name, value in constants.items()]
    return {
        "version": release,
        "functions": [{"name": name} for name in functions.split()],
        "enums": [{"name": "E", "constants": rows}],
    }


def test_history_is_carried_to_a_new_release() -> None:
    old, new = facts("9.1.0", "f g", A=0, COUNT=1), facts("9.2.0", "f h", A=0, B=1, COUNT=2)
    record = {"9.0.0": {"functions": ["g"], "constants": ["A"], "changed_values": {}}}
    moved = history.carried(record, old, new)
    assert moved["9.1.0"] == {"functions": ["h"], "constants": ["B"], "changed_values": {"COUNT": 1}}
    assert moved["9.0.0"] == {"functions": ["h"], "constants": ["A", "B"], "changed_values": {}}
    assert history.carried(record, new, new) == record
    assert history.carried({}, None, new) == {}


def test_history_file_is_about_the_committed_release() -> None:
    functions, constants = history.names(Library("cudnn").facts)
    for lacking in history.read().values():
        assert set(lacking["functions"]) <= functions
        assert set(lacking["constants"]) <= constants
        assert all(name.endswith(("COUNT", "COUNTS")) for name in lacking["changed_values"])
