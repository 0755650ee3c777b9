"""What an Inferer writes: each content once, nothing where it cannot be saved."""

from pathlib import Path

import pytest

from lamina import nn
from lamina._tree import flatten
from lamina.infer import Inferer
from lamina.infer.saving import encode_structure
from lamina.replay.file import Reading
from tests.infer.test_inferer import Lambda, floats


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with Inferer(nn.Linear(3, 2), device="cpu") as inferer:
        with pytest.raises(ValueError, match="no program yet"):
            inferer.save(tmp_path / "p")
        inferer(floats(0, 1, 3))
        with pytest.raises(OSError, match="absent"):
            inferer.save(tmp_path / "absent" / "p")
    with Inferer(Lambda(lambda x: {(1, 2): x}), device="cpu") as odd:
        odd(floats(0, 1, 3))
        with pytest.raises(ValueError, match="as keys"):
            odd.save(tmp_path / "p")
    assert not list(tmp_path.iterdir())


def test_structures() -> None:
    tree = {"a": (1, [2, None]), 3: 4}
    found = encode_structure(flatten(tree)[1])
    assert found == ["dict", ["a", 3], [["tuple", [], ["*", ["list", [], ["*", ["none", [], []]]]]], "*"]]


def test_programs_share_their_weights(tmp_path: Path) -> None:
    sizes = []
    for shapes in ([(1, 64)], [(1, 64), (2, 64), (5, 64)]):
        with Inferer(nn.Linear(64, 512), device="cpu") as inferer:
            for shape in shapes:
                inferer(floats(0, *shape))
            inferer.save(tmp_path / "p", portable=False)
        reading = Reading(tmp_path / "p")
        reading.close()
        assert len(reading.header["programs"]) == len(shapes)
        sizes.append(len(reading.memory))
    assert sizes[1] < sizes[0] + 64 * 512 * 4
