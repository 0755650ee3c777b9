"""Names that do not match: the message has shapes, near names and what to do."""

import numpy as np
import pytest

from lamina import nn


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))


def state(net: nn.Module, change: object) -> dict[str, np.ndarray]:
    return {change(k): v.numpy() for k, v in net.state_dict().items()}  # type: ignore[operator]


def test_near_names_and_shapes_are_told(net: nn.Module) -> None:
    given = state(net, lambda k: k.replace("0.weight", "0.weights"))
    with pytest.raises(KeyError) as error:
        net.load_state_dict(given)
    text = str(error.value)
    assert "missing 0.weight [4, 3] (nearest: 0.weights [4, 3])" in text
    assert "unexpected 0.weights [4, 3]" in text
    assert "load_weights(file, rename=…)" in text


def test_a_prefix_is_told(net: nn.Module) -> None:
    with pytest.raises(
        KeyError, match=r"All given names begin with 'module\.': load_weights\(file, prefix='module\.'\)"
    ):
        net.load_state_dict(state(net, lambda k: "module." + k))
    inside = nn.ModuleDict({"net": net})
    with pytest.raises(KeyError, match=r"All names of the module begin with 'net\.'"):
        inside.load_state_dict(state(net, lambda k: k))


def test_long_lists_stay_quick(net: nn.Module) -> None:
    given = {f"a.very.long.name.{i}.weight": np.zeros(1, np.float32) for i in range(20_000)}
    with pytest.raises(KeyError, match="missing 0.weight"):
        net.load_state_dict(given)
