"""Facts combined with overrides: the types of a library and the role of every parameter."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Facts = dict[str, Any]

# C spelling -> (code of lamina.c._library, ctypes class)
SCALARS = {
    "int": ("i", "c_int"),
    "int32_t": ("i", "c_int"),
    "unsigned int": ("I", "c_uint"),
    "uint32_t": ("I", "c_uint"),
    "int64_t": ("q", "c_int64"),
    "dnnl_dim_t": ("q", "c_int64"),
    "unsigned long long": ("Q", "c_uint64"),
    "size_t": ("N", "c_size_t"),
    "int8_t": ("b", "c_int8"),
    "uint8_t": ("B", "c_uint8"),
    "float": ("f", "c_float"),
    "double": ("d", "c_double"),
    "char": ("c", "c_char"),
}
RETURNED = frozenset(
    {"out", "array_out", "structure_out", "text_out", "query_out", "element_out", "blob_out", "pairs_out"}
)
CHECKED = {"i": "-2147483648 <= {0} <= 2147483647", "I": "0 <= {0} <= 4294967295", "N": "{0} >= 0"}

_SCALING = re.compile(r"(alpha|beta)(\d|[A-Z]\w*)?")


def version(text: str) -> tuple[int, ...]:
    """'9.22.0' -> (9, 22, 0)."""
    return tuple(map(int, text.split(".")))


@dataclass(frozen=True)
class Type:
    """A parsed C type."""

    base: str  # without const, stars, brackets
    stars: int
    constant: bool  # the pointee is const
    array: bool

    @classmethod
    def of(cls, spelling: str) -> Type:
        """From libclang's spelling, such as 'const dnnl_dims_t' or 'const float **'."""
        array = spelling.endswith("[]")
        text = spelling.removesuffix("[]").strip()
        stars = text.count("*")
        constant = text.startswith("const ")
        base = re.sub(r"\bconst\b|\*", "", text).strip()
        return cls(base, stars, constant, array)


@dataclass(frozen=True)
class Parameter:
    """One C parameter and its role in Python.

    role: value | pointer | scaling | element | element_out | array | array_out | dims | floats | handles |
          structures | addresses | callback | out | structure_out | text_out | query_out | blob_out |
          pairs_out | hidden
    """

    name: str
    spelling: str
    type: Type
    role: str
    by: str = ""  # the descriptor, data type, or length required by the role
    used: str = ""  # the output with the number of written array entries
    default: str | None = None


@dataclass(frozen=True)
class Function:
    """One C function."""

    name: str
    header: str
    result: str
    parameters: tuple[Parameter, ...]
    since: tuple[int, ...] | None
    deprecated: bool
    replacement: str | None
    facts: Facts = field(repr=False)

    @property
    def outputs(self) -> list[Parameter]:
        """The values returned by the Python function, in C order."""
        return [p for p in self.parameters if p.role in RETURNED]


class Library:
    """The facts of one library with its overrides applied."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: Facts = json.loads((HERE / "api" / f"{name}.json").read_text())
        self.overrides: Facts = tomllib.loads((HERE / "overrides.toml").read_text())[name]
        history = HERE / "api" / f"{name}_history.json"
        self.history: Facts = json.loads(history.read_text()) if history.exists() else {}
        self.status: str = self.overrides["status"]

    # -- types --------------------------------------------------------------------------------------------

    @cached_property
    def enums(self) -> dict[str, list[Facts]]:
        """Enum name -> its constants; enums of other headers come from the overrides."""
        found = {e["name"]: e["constants"] for e in self.facts["enums"]}
        for name, values in self.overrides.get("enums", {}).items():
            found[name] = [{"name": key, "value": value} for key, value in values.items()]
        return found

    @cached_property
    def structs(self) -> dict[str, list[Facts]]:
        """Structure name (as functions spell it) -> fields."""
        tags = {f"struct {s['name']}": s["fields"] for s in self.facts["structs"]}
        named = {t["name"]: tags[t["target"]] for t in self.facts["typedefs"] if t["target"] in tags}
        return {**named, **{s["name"]: s["fields"] for s in self.facts["structs"] if s["name"] in named}}

    @cached_property
    def handles(self) -> set[str]:
        """Type names that are opaque pointers."""
        opaque = {t["name"] for t in self.facts["typedefs"] if t.get("opaque") or t["target"] == "void *"}
        return opaque | {n for n, code in self.overrides.get("types", {}).items() if code == "p"}

    def opaque(self, kind: Type) -> str | None:
        """The Python class of an opaque pointer made by the library, None for other types.

        CUDA objects (streams, graphs) come from other libraries, as plain addresses.
        """
        name = kind.base.removeprefix("const_")
        return name if not kind.array and name in self.made else None

    @cached_property
    def made(self) -> list[str]:
        """The types that the library creates and destroys."""
        foreign = self.overrides.get("types", {})
        return sorted({n.removeprefix("const_") for n in self.handles if n not in foreign})

    @cached_property
    def callbacks(self) -> dict[str, str]:
        """Callback type -> its C spelling."""
        return {t["name"]: t["target"] for t in self.facts["typedefs"] if "(*)" in t["target"]}

    def code(self, kind: Type) -> str:
        """The signature code of a by-value type."""
        if kind.stars or kind.array or kind.base in self.handles or kind.base in self.callbacks:
            return "s" if kind.base == "char" and kind.stars == 1 and kind.constant else "p"
        if kind.base in self.enums:
            return kind.base
        if kind.base == "dnnl_dims_t":
            return "p"
        return SCALARS[kind.base][0]

    # -- functions ----------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> list[Function]:
        """Every function that is bound, in header order."""
        skipped = self.overrides.get("skip", {})
        return [self._function(f) for f in self.facts["functions"] if f["name"] not in skipped]

    def _function(self, facts: Facts) -> Function:
        name = facts["name"]
        return Function(
            name=name,
            header=facts["header"],
            result=facts["result"],
            parameters=tuple(self._parameter(name, p) for p in facts["parameters"]),
            since=self.since(name, facts),
            deprecated=bool(facts.get("deprecated")),
            replacement=self.replacement(name, facts),
            facts=facts,
        )

    def _listed(self, table: str, function: str, parameter: str) -> bool:
        return parameter in self.overrides.get(table, {}).get(function, ())

    def _parameter(self, function: str, facts: Facts) -> Parameter:
        name, spelling = facts["name"], facts["type"]
        kind = Type.of(spelling)
        role, by, used = self._role(function, name, kind)
        default = self.overrides.get("default", {}).get(function, {}).get(name)
        return Parameter(name, spelling, kind, role, by, used, None if default is None else str(default))

    def _role(self, function: str, name: str, kind: Type) -> tuple[str, str, str]:
        get = self.overrides.get
        length = get("length", {}).get(function, {}).get(name)
        if name in get("element", {}).get(function, {}):
            out = not kind.constant and function.startswith("cudnnGet")
            return ("element_out" if out else "element"), get("element", {})[function][name], ""
        if kind.base == "void" and kind.stars == 1 and kind.constant and _SCALING.fullmatch(name):
            return "scaling", self._scaled_by(function, name), ""
        for table in ("floats", "handles", "structures", "addresses"):
            if self._listed(table, function, name):
                return table, "", ""
        if self._listed("structure_out", function, name):
            return "structure_out", "", ""
        if name in get("text", {}).get(function, {}):
            return "text_out", get("text", {})[function][name], ""
        if function in get("query", {}) and name == "result":
            return "query_out", get("query", {})[function], ""
        if self._listed("blob", function, name) or self._listed("pairs", function, name):
            first = next(table for table in ("blob", "pairs") if self._listed(table, function, name))
            pair = get(first, {})[function]
            return (first + "_out" if name == pair[1] else "hidden"), pair[0], ""
        if self._listed("hidden", function, name):
            return "hidden", "", ""
        if self._listed("device", function, name) or self._listed("buffer", function, name):
            return "pointer", "", ""
        if length and (kind.array or kind.stars) and not kind.constant:
            return "array_out", length[0], length[1] if len(length) > 1 else ""
        if kind.base == "dnnl_dims_t":
            return "dims", length[0] if length else "0", ""
        if kind.array or self._listed("host", function, name):
            return "array", length[0] if length else "0", ""
        if kind.base in self.callbacks and not kind.stars:
            return "callback", "", ""
        if self._is_output(kind):
            return "out", "", ""
        return ("pointer" if kind.stars else "value"), "", ""

    def _is_output(self, kind: Type) -> bool:
        """A non-const pointer to a scalar, enum or handle, or to a pointer."""
        if kind.stars == 2 and kind.base == "void" and not kind.constant:
            return True
        if kind.stars != 1 or kind.constant:
            return False
        known = kind.base in SCALARS or kind.base in self.enums or kind.base in self.handles
        return known or kind.base in self.callbacks

    def _scaled_by(self, function: str, name: str) -> str:
        entry = self.overrides["scaling"].get(function)
        if entry is None:
            raise KeyError(f"overrides.toml: [{self.name}.scaling] lacks {function} (parameter {name})")
        return str(entry[name] if isinstance(entry, dict) else entry)

    # -- versions -----------------------------------------------------------------------------------------

    def since(self, name: str, facts: Facts) -> tuple[int, ...] | None:
        """First version that has `name`: from the overrides, else from the header's tag and the older headers.

        The tag is accepted if it lies between the last compared version that lacks the name and the first that
        has it; else that first version is the answer. None: there is neither a tag nor an older header.
        """
        by_hand = self.overrides.get("since", {}).get(name)
        if by_hand:
            return version(by_hand)
        tag = version(facts["since"]) if "since" in facts else None
        if not self.history:
            return tag
        last_absent = max(self._absences.get(name, [(0, 0, 0)]))
        first_present = next(have for have in self._compared if have > last_absent)
        return tag if tag is not None and last_absent < tag <= first_present else first_present

    @cached_property
    def _compared(self) -> list[tuple[int, ...]]:
        return sorted([*map(version, self.history), version(self.facts["version"])])

    @cached_property
    def _absences(self) -> dict[str, list[tuple[int, ...]]]:
        found: dict[str, list[tuple[int, ...]]] = {}
        for text, lacking in self.history.items():
            for name in (*lacking["functions"], *lacking["constants"]):
                found.setdefault(name, []).append(version(text))
        return found

    def replacement(self, name: str, facts: Facts) -> str | None:
        """The replacement of a deprecated name, from the header or the overrides."""
        by_hand = self.overrides.get("replacement", {}).get(name)
        found = by_hand or facts.get("replacement")
        return None if found is None else str(found)
