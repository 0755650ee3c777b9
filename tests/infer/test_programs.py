"""Programs whose samples share a run: a trial shows whether places matter."""

from typing import Any

import numpy as np
import pytest

from lamina import nn
from lamina.infer import Inferer
from tests.infer.test_inferer import floats


def test_the_trial_sees_one_bit() -> None:
    with Inferer(nn.Linear(3, 2), device="cpu", max_batch=4) as inferer:
        inferer(floats(0, 1, 3))
        (program,) = inferer._programs.values()
        assert program.is_placeless()  # type: ignore[attr-defined]
        run = program.run

        def uneven(inputs: Any) -> Any:
            (y,) = run(inputs)
            y[2:3].view(np.uint8)[0, 0] ^= 1
            return [y]

        program.run = uneven  # type: ignore[method-assign]
        assert not program.is_placeless()  # type: ignore[attr-defined]


@pytest.mark.parametrize("features", [1, 3, 7])
def test_small_networks_are_tried_often_enough(features: int) -> None:
    """A product that rounds differently at a few places shows it in a few of a thousand numbers."""
    nn.manual_seed(features)
    with Inferer(nn.Linear(features, 2), device="cpu", max_batch=8) as inferer:
        inferer(floats(0, 1, features))
        (program,) = inferer._programs.values()
        if not program.together:
            return  # found: nothing is gathered
        for k in range(50):
            x = floats(k, 8, features)
            (wanted,) = program.run([x])
            for shift in range(1, 8):
                (found,) = program.run([np.roll(x, shift, 0)])
                assert np.roll(found, -shift, 0).tobytes() == wanted.tobytes()
