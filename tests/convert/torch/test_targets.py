"""What a node of torch.fx calls."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_arguments_get_the_names_of_the_overload_that_fits() -> None:
    import torch

    from lamina.convert.torch.cells import Cell
    from lamina.convert.torch.targets import full_name, name_of, named

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    view, batch_norm = graph.call_method("view", (x, 2, 3)), graph.call_function(torch.batch_norm, (x,))
    cell = Cell(None)
    assert named(view, (cell, 2, 3), {}) == {"input": cell, "size": [2, 3]}
    assert named(view, (cell, -1), {}) == {"input": cell, "size": -1}
    assert named(view, (cell, torch.int32), {}) == {"input": cell, "dtype": torch.int32}
    given = (cell, None, None, cell, cell, True, 0.1, 1e-5, False)
    assert named(batch_norm, given, {})["running_var"] is cell
    add_ = graph.call_function(torch.ops.aten.add_.Tensor, (x, x))
    assert (name_of(add_), full_name(add_)) == ("add_", "aten.add_.Tensor")
    assert name_of(graph.call_function(torch.true_divide, (x, x))) == "div"
    assert full_name(view) == "Tensor.view"
    total = graph.call_method("sum", (x,))
    assert named(total, (cell,), {"axis": 1, "keepdims": True}) == {"input": cell, "dim": 1, "keepdim": True}
    assert named(graph.call_function(torch.add, ()), (), {"x1": cell, "x2": 2}) == {"input": cell, "other": 2}
    with pytest.raises(TypeError, match="no overload takes"):
        named(view, (cell, "two"), {})
    with pytest.raises(TypeError, match=r"Tensor.sum: no overload takes \(Cell, axes\)"):
        named(total, (cell,), {"axes": 1})


def test_a_bool_is_a_number_where_a_float_is_expected() -> None:
    """As in PyTorch, which takes none for a size. Dynamo records `F.pad(mask, (1, 0), value=True)` as a built-in."""
    import torch

    from lamina.convert.torch.cells import Cell
    from lamina.convert.torch.targets import named

    graph, cell = torch.fx.Graph(), Cell(None)
    pad = graph.call_function(torch._C._nn.pad, (graph.placeholder("x"),))
    assert named(pad, (cell, (1, 0), "constant", True), {})["value"] is True
    std = graph.call_function(torch.std, (graph.placeholder("y"),))
    assert named(std, (cell, True), {}) == {"input": cell, "unbiased": True}
    with pytest.raises(TypeError, match="no overload takes"):
        named(pad, (cell, True, "constant", 0.0), {})
