"""The table of published keys is what transformers says."""

import pytest

from tests.helpers.nn.twins import shapes
from tests.judges import published


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", published.NETWORKS)
def test_the_table_is_what_transformers_has(name: str) -> None:
    pytest.importorskip("transformers")
    assert shapes(published.transformers_network(name).state_dict()) == published.table()[name]
