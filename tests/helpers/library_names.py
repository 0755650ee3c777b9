"""Names and shapes of weights in torchvision, timm and transformers, for tests without these libraries.

python -m tests.helpers.library_names write     writes tests/helpers/library_names.json
"""

import base64
import importlib
import json
import sys
import zlib
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("library_names.json")
#: Networks of timm and of transformers, and the same ones of torchvision.
TIMM = {
    "vit_base_patch16_224": "vit_b_16",
    "swin_tiny_patch4_window7_224": "swin_t",
    "convnext_tiny": "convnext_tiny",
    "regnety_004": "regnet_y_400mf",
    "efficientnet_b0": "efficientnet_b0",
    "vgg11_bn": "vgg11_bn",
    "resnet50": "resnet50",
    "densenet121": "densenet121",
}
HUGGING_FACE = {"vit": "vit_b_16", "resnet": "resnet50", "convnext": "convnext_tiny"}
Names = dict[str, list[int]]


def torchvision_network(name: str) -> Any:
    """With random weights."""
    models = importlib.import_module("tests.helpers.vision").models
    return getattr(models, name)(weights=None).eval()


def timm_network(name: str) -> Any:
    """With random weights."""
    importlib.import_module("tests.helpers.vision")  # timm imports torchvision
    return importlib.import_module("timm").create_model(name).eval()


def hugging_face_network(name: str) -> Any:
    """With random weights."""
    importlib.import_module("tests.helpers.vision")
    tr = importlib.import_module("transformers")
    kind = {"vit": "ViT", "resnet": "ResNet", "convnext": "ConvNext"}[name]
    settings = getattr(tr, f"{kind}Config")(num_labels=1000)
    return getattr(tr, f"{kind}ForImageClassification")(settings).eval()


def names_of(network: Any) -> Names:
    """Shapes by name."""
    return {name: list(x.shape) for name, x in network.state_dict().items()}


def table() -> dict[str, dict[str, Names]]:
    """By library and network."""
    text: dict[str, dict[str, Names]] = json.loads(
        zlib.decompress(base64.b64decode(json.loads(TABLE.read_text())))
    )
    return text


def made() -> dict[str, dict[str, Names]]:
    """The table from the installed libraries."""
    theirs = sorted({*TIMM.values(), *HUGGING_FACE.values()})
    return {
        "torchvision": {name: names_of(torchvision_network(name)) for name in theirs},
        "timm": {name: names_of(timm_network(name)) for name in TIMM},
        "hugging-face": {name: names_of(hugging_face_network(name)) for name in HUGGING_FACE},
    }


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    packed = base64.b64encode(zlib.compress(json.dumps(made()).encode(), 9)).decode()
    TABLE.write_text(json.dumps(packed) + "\n")
