"""Read C headers with libclang into plain facts (dicts that go to JSON).

Only this module needs libclang and the headers, and only when a library version moves.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clang.cindex as cx

from codegen import history

API = Path(__file__).parent / "api"
Facts = dict[str, Any]

_SINCE = re.compile(r"@since\s+cuDNN\s+(\d+)\.(\d+)(?:\.(\d+))?")
_DIRECTION = re.compile(r"@param\s*\[\s*([a-z, ]+?)\s*\]\s+([\w, ]+?)(?:\s{2,}|\s[A-Z]|$)", re.M)
_REPLACEMENT = re.compile(r"@deprecated[^@]*?\bUse\s+(cudnn\w+|CUDNN_\w+|graph API)")
_WHOLE_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Source:
    """The location of one library's headers, and how to read them."""

    library: str  # "cudnn" | "dnnl"
    include: Path  # folder with the headers
    headers: tuple[str, ...]  # what to include, in this order
    prefix: str  # only files with this prefix are read
    version_macros: tuple[str, str, str]
    defines: tuple[str, ...] = ()
    system: tuple[Path, ...] = ()  # further include folders (CUDA)

    def text(self) -> str:
        """The one-file program that includes every header."""
        return "".join(f'#include "{name}"\n' for name in self.headers)


def cudnn_source(include: Path, cuda: Path) -> Source:
    """cuDNN: the master header and every sub-library header that this version has."""
    wanted = ("cudnn.h", "cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h", "cudnn_adv.h", "cudnn_backend.h")
    extra = ("cudnn_gnn_ops.h", "cudnn_subquadratic_ops.h")
    headers = tuple(name for name in (*wanted, *extra) if (include / name).exists())
    macros = ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")
    return Source("cudnn", include, headers, "cudnn", macros, ("CUDNN_WARN_DEPRECATED",), (cuda,))


def dnnl_source(include: Path) -> Source:
    """oneDNN: the primitives API, the graph API and the name tables."""
    headers = tuple(f"oneapi/dnnl/{name}.h" for name in ("dnnl", "dnnl_graph", "dnnl_debug", "dnnl_version"))
    macros = ("DNNL_VERSION_MAJOR", "DNNL_VERSION_MINOR", "DNNL_VERSION_PATCH")
    return Source("dnnl", include, headers, "dnnl", macros)


def wheel_folder(distribution: str, ending: str) -> Path:
    """The folder of the first installed file of `distribution` whose path ends with `ending`."""
    for file in importlib.metadata.files(distribution) or ():
        if str(file).endswith(ending):
            return Path(str(file.locate())).resolve().parent
    raise FileNotFoundError(f"the installed {distribution!r} has no file {ending!r}")


# ---------------------------------------------------------------------------------------------------------
# libclang


def _compiler_include() -> str:
    done = subprocess.run(["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _translate(source: Source, text: str, *, strict: bool = True) -> cx.TranslationUnit:
    folders = [str(source.include), _compiler_include(), *map(str, source.system)]
    arguments = ["-x", "c", *(f"-I{folder}" for folder in folders), *(f"-D{name}" for name in source.defines)]
    unit = cx.Index.create().parse(
        "all.h",
        args=arguments,
        unsaved_files=[("all.h", text)],
        options=cx.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )
    errors = [str(d) for d in unit.diagnostics if d.severity >= cx.Diagnostic.Error]
    if strict and errors:
        raise RuntimeError(f"{source.library}: the headers do not parse:\n" + "\n".join(errors))
    return unit


def _own(source: Source, unit: cx.TranslationUnit) -> Iterator[cx.Cursor]:
    """Top-level declarations in the library's own headers, in order."""
    for cursor in unit.cursor.get_children():
        file = cursor.location.file
        if file is not None and Path(file.name).name.startswith(source.prefix):
            yield cursor


def _deprecated(cursor: cx.Cursor) -> bool:
    return bool(cursor.availability == cx.AvailabilityKind.DEPRECATED)


def _since(comment: str | None) -> str | None:
    """`9.22.0` from the header's version tag; None if it has none (or an unpublished one)."""
    match = _SINCE.search(comment or "")
    return ".".join(part or "0" for part in match.groups()) if match else None


def _replacement(comment: str | None) -> str | None:
    match = _REPLACEMENT.search(comment or "")
    return match.group(1) if match else None


def _directions(comment: str | None) -> dict[str, str]:
    """Parameter name -> in | out | inout, as tagged in the header."""
    found = {}
    for direction, names in _DIRECTION.findall(comment or ""):
        for name in _WHOLE_NAME.findall(names):
            found[name] = direction.replace(",", "").replace(" ", "")
    return found


def _facts(cursor: cx.Cursor) -> Facts:
    """Facts common to all named objects: version, deprecation, replacement, if any."""
    comment = cursor.raw_comment
    facts: Facts = {}
    if since := _since(comment):
        facts["since"] = since
    if _deprecated(cursor):
        facts["deprecated"] = True
        if replacement := _replacement(comment):
            facts["replacement"] = replacement
    return facts


def _function(cursor: cx.Cursor) -> Facts:
    tagged = _directions(cursor.raw_comment)
    parameters = []
    for argument in cursor.get_arguments():
        parameter = {"name": argument.spelling, "type": argument.type.spelling}
        if argument.spelling in tagged:
            parameter["direction"] = tagged[argument.spelling]
        parameters.append(parameter)
    return {
        "name": cursor.spelling,
        "header": Path(cursor.location.file.name).name,
        "result": cursor.result_type.spelling,
        "parameters": parameters,
        **_facts(cursor),
    }


def _enum(cursor: cx.Cursor) -> Facts:
    constants = [
        {"name": child.spelling, "value": child.enum_value, **_facts(child)}
        for child in cursor.get_children()
    ]
    return {
        "name": cursor.type.spelling,
        "header": Path(cursor.location.file.name).name,
        "constants": constants,
    }


def _struct(cursor: cx.Cursor) -> Facts:
    fields = []
    for child in cursor.get_children():
        if child.kind == cx.CursorKind.FIELD_DECL:
            record = child.type.get_declaration()
            if record.kind == cx.CursorKind.UNION_DECL:
                members = [{"name": m.spelling, "type": m.type.spelling} for m in record.get_children()]
                fields.append({"name": child.spelling, "union": members})
            else:
                fields.append({"name": child.spelling, "type": child.type.spelling})
    return {
        "name": cursor.type.spelling.removeprefix("struct "),
        "fields": fields,
        "size": cursor.type.get_size(),
    }


def _typedef(cursor: cx.Cursor) -> Facts:
    target = cursor.underlying_typedef_type
    record = target.get_pointee().get_declaration() if target.kind == cx.TypeKind.POINTER else None
    opaque = record is not None and record.kind == cx.CursorKind.STRUCT_DECL and not record.is_definition()
    return {"name": cursor.spelling, "target": target.spelling, **({"opaque": True} if opaque else {})}


def _macros(source: Source, unit: cx.TranslationUnit) -> list[Facts]:
    """Object-like macros with a value, evaluated by the compiler (as enumerators of a probe program)."""
    names: dict[str, list[str]] = {}
    for cursor in _own(source, unit):
        if cursor.kind == cx.CursorKind.MACRO_DEFINITION:
            tokens = [token.spelling for token in cursor.get_tokens()]
            function_like = len(tokens) > 1 and tokens[1] == "(" and _is_function_like(cursor)
            if len(tokens) > 1 and not function_like:
                names[tokens[0]] = tokens[1:]
    order = list(names)
    text = source.text() + "".join(f"enum {{ probe_{name} = ({name}) }};\n" for name in order)
    probe = _translate(source, text, strict=False)
    first = source.text().count("\n") + 1
    wrong = {
        order[d.location.line - first]
        for d in probe.diagnostics
        if d.severity >= cx.Diagnostic.Error and d.location.line >= first
    }
    values = {
        child.spelling.removeprefix("probe_"): child.enum_value
        for cursor in probe.cursor.get_children()
        if cursor.kind == cx.CursorKind.ENUM_DECL
        for child in cursor.get_children()
        if child.spelling.startswith("probe_")
    }
    found: list[Facts] = []
    for name in order:
        if name not in wrong and name in values:
            found.append({"name": name, "value": values[name]})
        elif (literal := _literal(names[name])) is not None:
            found.append({"name": name, "value": literal})
    return found


def _is_function_like(cursor: cx.Cursor) -> bool:
    tokens = list(cursor.get_tokens())
    return bool(tokens[1].extent.start.offset == tokens[0].extent.end.offset)


def _literal(tokens: list[str]) -> float | str | None:
    """A floating-point or string literal, else None."""
    if len(tokens) != 1:
        return None
    if tokens[0].startswith('"'):
        return tokens[0].strip('"')
    try:
        return float(tokens[0])
    except ValueError:
        return None


def parse(source: Source) -> Facts:
    """Every fact of one library."""
    unit = _translate(source, source.text())
    functions, enums, structs, typedefs = {}, {}, {}, {}
    for cursor in _own(source, unit):
        if cursor.kind == cx.CursorKind.FUNCTION_DECL:
            functions[cursor.spelling] = _function(cursor)
        elif cursor.kind == cx.CursorKind.ENUM_DECL:
            enums[cursor.type.spelling] = _enum(cursor)
        elif cursor.kind == cx.CursorKind.STRUCT_DECL and cursor.is_definition():
            structs[cursor.spelling] = _struct(cursor)
        elif cursor.kind == cx.CursorKind.TYPEDEF_DECL:
            typedefs[cursor.spelling] = _typedef(cursor)
    macros = _macros(source, unit)
    value = {macro["name"]: macro["value"] for macro in macros}
    return {
        "library": source.library,
        "version": ".".join(str(value[name]) for name in source.version_macros),
        "typedefs": list(typedefs.values()),
        "enums": list(enums.values()),
        "structs": list(structs.values()),
        "macros": macros,
        "functions": list(functions.values()),
    }


# ---------------------------------------------------------------------------------------------------------
# Files


def write(path: Path, facts: Facts) -> None:
    """JSON with one fact per line, for readable diffs between versions."""
    lines = ["{"]
    last = list(facts)[-1]
    for key, value in facts.items():
        comma = "" if key == last else ","
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            lines.append(f' "{key}": [\n{rows}\n ]{comma}')
        else:
            lines.append(f' "{key}": {json.dumps(value)}{comma}')
    path.write_text("\n".join([*lines, "}"]) + "\n")


def run(cudnn: Path, dnnl: Path, cuda: Path, older: Iterable[Path]) -> list[str]:
    """Write codegen/api/*.json; returns one line per file for the terminal."""
    API.mkdir(exist_ok=True)
    target = API / "cudnn.json"
    previous = json.loads(target.read_text()) if target.exists() else None
    said = []
    for facts in (parse(cudnn_source(cudnn, cuda)), parse(dnnl_source(dnnl))):
        write(API / f"{facts['library']}.json", facts)
        functions, constants = history.names(facts)
        said.append(
            f"{facts['library']} {facts['version']}: {len(functions)} functions, "
            f"{len(facts['enums'])} enums, {len(constants)} constants"
        )
    newest = json.loads(target.read_text())
    record = history.carried(history.read(), previous, newest)
    for include in older:
        facts = parse(cudnn_source(include, cuda))
        record[facts["version"]] = history.absent(newest, facts)
        lacking = record[facts["version"]]
        said.append(
            f"cudnn {facts['version']} lacks {len(lacking['functions'])} functions and "
            f"{len(lacking['constants'])} constants of {newest['version']}"
        )
    history.write(record)
    return said
