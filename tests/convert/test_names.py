"""Weights of timm and transformers get torchvision's names: names, shapes, and what the network computes."""

from typing import Any

import numpy as np
import pytest

from lamina.convert import hugging_face_names, timm_names
from lamina.files.weights import joined, renamed
from tests.helpers import library_names
from tests.helpers.library_names import HUGGING_FACE, TIMM

pytestmark = pytest.mark.feature("B025")

CASES = [("timm", n) for n in TIMM] + [("hugging-face", n) for n in HUGGING_FACE]
RULES = {"timm": timm_names, "hugging-face": hugging_face_names}
#: What torchvision computes anew, though its files have it.
COMPUTED = "relative_position_index"


def target(library: str, name: str) -> str:
    return (TIMM if library == "timm" else HUGGING_FACE)[name]


@pytest.mark.parametrize(("library", "name"), CASES)
def test_every_name_has_its_place(library: str, name: str) -> None:
    table = library_names.table()
    given = {k: np.broadcast_to(np.float32(0), s) for k, s in table[library][name].items()}
    found = joined(renamed(given, rename=RULES[library]))
    wanted = {k: s for k, s in table["torchvision"][target(library, name)].items() if COMPUTED not in k}
    assert {k: list(a.shape) for k, a in found.items()} == wanted


def test_names_of_published_vit_files() -> None:
    """Files on the hub have the names of transformers before version 5."""
    names = [
        "vit.embeddings.cls_token", "vit.encoder.layer.3.attention.attention.query.weight",
        "vit.encoder.layer.3.attention.attention.key.weight",
        "vit.encoder.layer.3.attention.attention.value.weight",
        "vit.encoder.layer.3.attention.output.dense.bias", "vit.encoder.layer.3.intermediate.dense.weight",
        "vit.encoder.layer.3.output.dense.weight", "vit.encoder.layer.3.layernorm_after.bias",
        "vit.pooler.dense.bias",
    ]  # fmt: skip
    layer = "encoder.layers.encoder_layer_3."
    found = joined(renamed({n: np.full((1, 1), i) for i, n in enumerate(names)}, rename=hugging_face_names))
    assert list(found) == [
        "class_token", layer + "self_attention.in_proj_weight", layer + "self_attention.out_proj.bias",
        layer + "mlp.0.weight", layer + "mlp.3.weight", layer + "ln_2.bias",
    ]  # fmt: skip
    assert found[layer + "self_attention.in_proj_weight"].tolist() == [[1], [2], [3]]


def test_other_networks_keep_their_names() -> None:
    assert timm_names(["conv1.weight", "layer1.0.bn1.weight"]) == {}
    assert hugging_face_names(["transformer.wte.weight", "bert.embeddings.word_embeddings.weight"]) == {}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("library", "name"), CASES)
def test_the_network_computes_the_same(library: str, name: str) -> None:
    import torch

    torch.manual_seed(0)
    make = library_names.timm_network if library == "timm" else library_names.hugging_face_network
    theirs: Any = make(name)
    for p in theirs.parameters():  # scales that begin at zero or a millionth would hide what they scale
        if p.ndim == 1:
            torch.nn.init.uniform_(p, 0.2, 0.8)
    mine = library_names.torchvision_network(target(library, name))
    given = {k: x.numpy() for k, x in theirs.state_dict().items()}
    found = joined(renamed(given, rename=RULES[library]))
    left = mine.load_state_dict({k: torch.from_numpy(np.array(a)) for k, a in found.items()}, strict=False)
    assert left.unexpected_keys == []
    assert all(COMPUTED in k for k in left.missing_keys)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        want = theirs(x)
        want = getattr(want, "logits", want)
        np.testing.assert_allclose(
            mine(x).numpy(), want.numpy(), rtol=2e-3, atol=2e-3 * float(want.abs().max())
        )


@pytest.mark.torch
@pytest.mark.slow
def test_the_table_is_that_of_the_libraries() -> None:
    assert library_names.made() == library_names.table()
