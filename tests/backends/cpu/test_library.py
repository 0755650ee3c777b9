"""Plans of oneDNN's primitives."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.backends import Call, PlanTape
from lamina.backends.cpu import library
from lamina.onednn.recipe import RecipeError
from lamina.spec import Spec, float32


def test_a_primitive_meets_operands_at_many_addresses() -> None:
    layer = nn.Linear(8, 8)
    inputs = [lm.tensor(np.full((4, 8), i, np.float32)) for i in range(3 * library._MOST_MEMORIES)]
    for _ in range(2):
        for x in inputs:
            wanted = x.numpy().astype(np.float64) @ layer.weight.numpy().T + layer.bias.numpy()
            np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 4, 16), (3, 1, 5), (1, 1, 7), (2, 5, 1)])
@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2)])
def test_axes_of_one_element_may_have_any_stride(shape: tuple[int, ...], axes: tuple[int, int]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x, wanted = lm.tensor(values).transpose(*axes), np.swapaxes(values, *axes)
    column = np.arange(wanted.shape[1], dtype=np.float32)[:, None]
    np.testing.assert_array_equal((x * 0.5).numpy(), wanted * np.float32(0.5))
    np.testing.assert_array_equal((x + column).numpy(), wanted + column)
    np.testing.assert_array_equal(lm.ops.relu(x - x * 2.0).numpy(), np.maximum(-wanted, 0))


def test_an_order_of_axes_that_has_no_name_is_told_by_strides() -> None:
    spec = Spec((2, 3, 4, 5), float32)
    assert library.open_desc(spec, "acdb").strides == (60, 1, 15, 3)
    assert library.open_desc(spec, "cabd").strides == (15, 5, 30, 1)
    with pytest.raises(ValueError, match="no format tag 'caab'"):
        library.open_desc(spec, "caab")


def test_stages_are_data_where_all_are_primitives_that_have_such_a_form() -> None:
    call, tape = Call((64,), (128,), workspace=1024), Mock(spec=PlanTape)
    first, second, formless = (Mock(spec=library.PrimitiveStage) for _ in range(3))
    first.recorded.return_value, second.recorded.return_value = ["a"], ["b"]
    formless.recorded.side_effect = RecipeError("none")
    assert library.Stages((first, second), 256).recorded(call, tape) == [["a"], ["b"]]
    first.recorded.assert_called_with(call, 1024 + 256, tape)
    for stages in ((first, lambda call: lambda: None), (lambda call: lambda: None,), (first, formless)):
        assert library.Stages(stages, 256).recorded(call, tape) is None
    assert library.Stages((), 0).recorded(call, tape) == []


def test_stages_run_in_their_order_and_quietly_where_they_are_numpys() -> None:
    """Primitives share their scratch memory behind the workspace; NumPy warns of no overflow."""
    call, ran = Call((64,), (128,), workspace=1024), list[Any]()
    primitive = Mock(spec=library.PrimitiveStage)
    primitive.bind.return_value = lambda: ran.append("primitive")

    def function(given: Call) -> Any:
        return lambda: ran.append((given, np.float32(3e38) * np.float32(10), np.float32(0) / np.float32(0)))

    library.Stages((primitive, function, primitive), 256)(call)()
    primitive.bind.assert_called_with(call, 1024 + 256)
    assert [ran[0], ran[2]] == ["primitive"] * 2
    assert ran[1][:2] == (call, np.inf)
    assert np.isnan(ran[1][2])
    ran.clear()
    library.Stages((primitive,), 0)(call)()
    assert ran == ["primitive"]
