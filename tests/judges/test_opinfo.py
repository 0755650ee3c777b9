"""PyTorch's OpInfo as the judge of `lamina.ops`: nothing is wrong, and what is refused is known by reason."""

import pytest

from tests.helpers import slow_but_every, slow_from
from tests.judges import opinfo

pytestmark = pytest.mark.torch

AGAIN = "look at what changed, then run: python -m tests.judges.opinfo write"
#: By dtype the least samples that agree, those with gradients, and entries that have any.
LEAST = {"float32": (5000, 3900, 390), "float64": (3400, 2800, 380), "bfloat16": (3200, 2600, 360)}


@pytest.mark.feature("B048")
@pytest.mark.parametrize("dtype", slow_from(1, LEAST))
@pytest.mark.parametrize("name", slow_but_every(4, opinfo.known("float32")))
def test_samples_agree_or_are_refused_as_listed(dtype: str, name: str) -> None:
    """None is wrong; each refusal is a typed error that the committed file lists."""
    outcome = opinfo.judge(name, dtype)
    assert outcome.wrong == []
    assert opinfo.refusals({name: outcome})[name] == opinfo.known(dtype)[name], f"{AGAIN} {dtype}"


@pytest.mark.parametrize("dtype", LEAST)
def test_thousands_of_samples_agree(dtype: str) -> None:
    """Every entry that shares a name is in the file, and what is refused is less than a tenth."""
    known = opinfo.known(dtype)
    assert sorted(known) == sorted(opinfo.entries())
    agree, gradients = (sum(entry[kind] for entry in known.values()) for kind in ("agree", "gradients"))
    assert (agree, gradients, sum(e["agree"] > 0 for e in known.values())) >= LEAST[dtype]
    assert sum(sum(entry.values()) for entry in known.values()) - agree - gradients < agree / 10
