"""What holds memory, or a handle of a library, is neither copied nor pickled: a copy would free it again."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import cudnn, onednn
from lamina.cudnn import legacy
from lamina.runtime import Device

pytestmark = pytest.mark.feature("F034")


def descriptor() -> Any:
    return cudnn.Graph().packed((1, 8, 8, 8), "float")


def legacy_descriptor() -> Any:
    return legacy.Activation("relu")


def memory() -> Any:
    place = Device("cpu").allocate(24)
    return onednn.Memory(onednn.MemoryDesc((2, 3)), place.pointer, onednn.Engine(), keep=place)


MADE: dict[str, Callable[[], Any]] = {
    "buffer": lambda: Device("cpu").allocate(100),
    "view": lambda: Device("cpu").allocate(100).view(8, 16),
    "stream": lambda: Device("cpu").default_stream,
    "cudnn": descriptor,
    "legacy": legacy_descriptor,
    "engine": onednn.Engine,
    "memory description": lambda: onednn.MemoryDesc((2, 3)),
    "memory": memory,
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps,
    "inside": lambda x: copy.deepcopy({"held": [x]}),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MADE)
def test_copies_are_refused_and_leave_it_whole(kind: str, way: str) -> None:
    made = MADE[kind]()
    before = repr(made)
    with pytest.raises(
        TypeError, match=rf"{type(made).__name__} holds memory or a handle of this process and cannot"
    ):
        WAYS[way](made)
    gc.collect()
    assert repr(made) == before
    del made
    gc.collect()


def test_tensors_are_copied_and_pickled_as_ever() -> None:
    x = lm.tensor(np.arange(6.0).reshape(2, 3))
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        np.testing.assert_array_equal(y.numpy(), x.numpy())
