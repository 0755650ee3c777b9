"""Plans that another process makes (`lamina.runtime.builders`): as text, their kernels included.

There they are made for the properties of a device, not for a device; loaded here they are plans for it.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from io import BytesIO
from typing import Any

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Descriptor
from lamina.cudnn.device import DeviceProperties
from lamina.cudnn.engine import EngineConfig, Key, OperationGraph
from lamina.cudnn.plan import ExecutionPlan
from lamina.runtime.builders import builders


def built_apart(config: EngineConfig, properties: DeviceProperties) -> bytes | None:
    """The plan of a configuration as `ExecutionPlan(json=…)` takes it; None where no process made it.

    Raises CudnnError as the library does there.
    """
    assert config.graph is not None
    sent = BytesIO()
    _Pickler(sent).dump(config.graph.values["operations"])
    request = sent.getvalue(), config.key, properties.json
    return builders.ask(_built, *request, environment={"LAMINA_CUDNN": c.library.path})


class _Pickler(pickle.Pickler):
    """Writes descriptors as their attributes; those that several refer to stay one."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value).of, (value.values,)) if isinstance(value, Descriptor) else NotImplemented


def _built(operations: bytes, key: Key, properties: str) -> bytes:
    """In the other process."""
    target = _properties(properties)
    engine, knobs = key
    config = EngineConfig(OperationGraph(pickle.loads(operations), target), engine, dict(knobs))
    return ExecutionPlan(config, target).json.encode()


@lru_cache(4)
def _properties(text: str) -> DeviceProperties:
    return DeviceProperties(json=text)
