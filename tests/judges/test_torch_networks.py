"""Networks of other packages agree with PyTorch as the table says."""

import json

import pytest

from tests.helpers import slow_from

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100", "B027")]


#: Whose own branches are on numbers, so that `from_torch` makes no graph of them; torch.compile does, of the parts.
REFUSED = {
    f"transformers/{name}" for name in (
        "Conditional DETR", "DETR", "Deformable DETR", "EnCodec", "LED", "Longformer", "Switch", "Table Transformer",
    )
}  # fmt: skip


def test_all_networks_of_the_table_agree() -> None:
    from tests.judges.torch_networks import TABLE, agrees, refused

    table = json.loads(TABLE.read_text())
    assert [name for name, outcome in table.items() if not agrees(outcome)] == []
    assert len(table) >= 290
    left = {name for name, outcome in table.items() for mode in ("eval", "train") if refused(outcome, mode)}
    assert left == REFUSED


@pytest.mark.parametrize(
    "name",
    slow_from(2, ["torch/LSTM", "transformers/SqueezeBERT", "torch/Transformer", "torchaudio/DeepSpeech"]),
)
def test_networks_for_sequences_still_agree(name: str) -> None:
    from tests.judges.torch_networks import agrees, judge

    assert agrees(outcome := judge(name)), outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["torchvision/resnet18", "torchvision/googlenet", "torchvision/shufflenet_v2_x0_5"]
)
def test_networks_for_images_still_agree(name: str) -> None:
    from tests.judges.torch_networks import agrees, judge

    assert agrees(outcome := judge(name)), outcome
