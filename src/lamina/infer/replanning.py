"""Replanning from the graphs and weights in a saved plan, on a machine other than the one it was saved on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.files import WeightsError, parse_safetensors
from lamina.graph import Executable, compile
from lamina.graph.ir.serialize import GraphFileError, parse
from lamina.infer.programs import GatheredProgram, ServedProgram
from lamina.infer.saved import program_of
from lamina.infer.serving import RequestKind
from lamina.replay.errors import PlanFileError
from lamina.replay.file import Reading
from lamina.runtime import Device
from lamina.spec import Spec
from lamina.tensors import Tensor


class Compiled:
    """An executable with the interface of a `Player`: arrays in, arrays out."""

    def __init__(self, executable: Executable, resident: int) -> None:
        self._executable, self.device = executable, executable.device
        graph = executable.graph
        self.inputs: list[tuple[str, Spec]] = [(v.name, v.spec.fixed) for v in graph.inputs[resident:]]
        self.outputs: list[tuple[int, Spec]] = [(0, v.spec.fixed) for v in graph.outputs]

    def __call__(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """The outputs for the inputs."""
        return [np.array(y.numpy()) for y in self._executable(*arrays)]

    def __repr__(self) -> str:
        return repr(self._executable)


def planned_anew(
    reading: Reading, device: Device, contexts: int
) -> list[tuple[RequestKind, ServedProgram, Sequence[int]]]:
    """The programs of a file, compiled for a device. Raises PlanFileError, NoKernel."""
    sources, found = reading.header["sources"], []
    try:
        weights = _weights(reading)
        graphs = [parse(bytes(reading.part(place)), reading.path) for place in sources["graphs"]]
    except (GraphFileError, WeightsError) as error:
        raise PlanFileError(str(error)) from error
    for data, graph in zip(reading.header["programs"], graphs, strict=True):
        executable = compile(graph, device, resident=range(len(weights)), contexts=contexts)
        executable.load(dict(enumerate(weights)))
        kind, program, counts = program_of(data, Compiled(executable, len(weights)), reading)
        if isinstance(program, GatheredProgram) and not program.is_placeless():
            program.together = False  # each request has its own full run
        found.append((kind, program, counts))
    return found


def _weights(reading: Reading) -> list[Tensor]:
    named, _ = parse_safetensors(
        bytes(reading.part(reading.header["sources"]["weights"])), reading.path, sealed=True
    )
    return [named[f"w{i}"] for i in range(len(named))]
