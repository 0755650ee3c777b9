"""Writing the programs of an `Inferer` to one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lamina._tree import LEAF, Structure
from lamina._version import __version__
from lamina.files import safetensors_parts
from lamina.graph import Graph
from lamina.graph.ir.batch_axis import batch_of, output_axes
from lamina.graph.ir.serialize import graph_parts
from lamina.graph.run.recorded import Recording
from lamina.infer.predictor import Predictor
from lamina.infer.programs import GatheredProgram, ServedProgram, host, resized
from lamina.infer.serving import RequestKind
from lamina.replay.file import Parts, write
from lamina.replay.machine import LIBRARIES, kinds, machine_of
from lamina.replay.specs import encode_spec

_KINDS = {tuple: "tuple", list: "list", dict: "dict", type(None): "none"}


def save_plan(
    predictor: Predictor,
    programs: Sequence[tuple[RequestKind, ServedProgram]],
    path: str | Path,
    *,
    portable: bool,
    serving: Mapping[str, Any],
) -> None:
    """Write programs of a predictor's network to a file. Raises ValueError, OSError.

    serving: the serving options, as `SavedInferer` takes them.
    """
    if not programs:
        raise ValueError("Inferer.save: there is no program yet; ask once for each kind of inputs")
    parts = Parts()
    recorded = [_program(predictor, kind, program, parts) for kind, program in programs]
    kept = parts.nbytes
    sources = None
    if portable:
        weights = {f"w{i}": x for i, x in enumerate(predictor.held)}
        graphs = [_joined(parts, graph_parts(program.graph)) for _, program in programs]
        sources = {"weights": _joined(parts, safetensors_parts(weights)), "graphs": graphs}
    used = {LIBRARIES[k] for p in recorded for k in kinds(p["plays"]["steps"]) if k in LIBRARIES}
    header = {
        "lamina": __version__,
        "network": type(predictor.net).__name__,
        "machine": machine_of(predictor.device, used),
        "kept": kept,
        "programs": recorded,
        "sources": sources,
        "serving": dict(serving),
    }
    write(path, header, parts)


def _joined(parts: Parts, pieces: Sequence[bytes | memoryview]) -> list[int]:
    """Where a file within the file lies: its offset and bytes."""
    data = b"".join(pieces)
    return [parts.add(data), len(data)]


def _program(predictor: Predictor, kind: RequestKind, program: ServedProgram, parts: Parts) -> dict[str, Any]:
    if program.generators:
        raise ValueError(
            f"Inferer.save: {type(predictor.net).__name__} draws random numbers, and a saved plan has no generator: "
            "give the network its noise as an input"
        )
    return {
        "inputs": encode_structure(kind.structure),
        "specs": [encode_spec(s) for s in kind.specs],
        "outputs": encode_structure(program.outputs),
        "gathered": _gathered(predictor, kind, program, parts)
        if isinstance(program, GatheredProgram)
        else None,
        "plays": Recording(program.executable, parts).data,
    }


def _gathered(
    predictor: Predictor, kind: RequestKind, program: GatheredProgram, parts: Parts
) -> dict[str, Any]:
    """How requests share a run: where samples lie, how many a request may have, and a valid one."""
    results = [None if r is None else [r.axis, r.size] for r in program.results]
    proven = [n for n in range(1, program.most) if _computes(predictor, kind, program, n)]
    samples = [
        [encode_spec(resized(s, a, 1)), parts.add(host(x).tobytes())]
        for s, a, x in zip(kind.specs, program.axes, program.sample, strict=True)
    ]
    return {
        "most": program.most,
        "counts": [*proven, program.most],
        "axes": list(program.axes),
        "results": results,
        "samples": samples,
    }


def _computes(predictor: Predictor, kind: RequestKind, program: GatheredProgram, count: int) -> bool:
    """Whether the ops prove that the program computes requests of this many samples."""
    specs = [resized(s, a, count) for s, a in zip(kind.specs, program.axes, strict=True)]
    small = predictor.traced(kind.structure, specs).graph
    large: Graph = program.graph
    batch = batch_of([v.spec for v in small.inputs], [v.spec for v in large.inputs])
    axes = None if batch is None else output_axes(small, large, batch, anywhere=True)
    return axes is not None and list(axes) == list(program.results)


def encode_structure(structure: Structure) -> Any:
    """A tree without its leaves, as JSON values. Raises ValueError for named tuples, and keys that JSON lacks."""
    if structure == LEAF:
        return "*"
    if structure.kind is bool:
        return structure.value
    if structure.kind not in _KINDS:
        raise ValueError(f"a saved plan has no {structure.kind}: give tuples, lists and dicts")
    if any(type(k) not in (str, int) for k in structure.keys):
        raise ValueError(f"a saved plan's dicts have words or whole numbers as keys, got {structure.keys}")
    return [_KINDS[structure.kind], list(structure.keys), [encode_structure(b) for b in structure.branches]]
