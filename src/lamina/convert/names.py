"""Rules that rename other libraries' weights to torchvision's names, by families of networks.

A family is recognized by a name that all of its networks have. torchvision's names are also those of `lamina.nn`.
`lamina.load_weights(path, rename=timm_names)` applies the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lamina.files.weights import Renames

#: The maximum numbers of stages, and of blocks of a stage, in networks of these families.
_STAGES, _BLOCKS = range(8), range(1, 64)


class Family(NamedTuple):
    """Similarly built networks of one library: a name that all of them have, and the rules for their names."""

    mark: str
    rules: Renames


def timm_names(names: Iterable[str]) -> Renames:
    """Rules that rename timm's weights to torchvision's: ViT, Swin, ConvNeXt, RegNet, EfficientNet, VGG.

    ResNet, ResNeXt and DenseNet have the same names there, and get no rules.
    """
    return _rules_for(names, _TIMM)


def hugging_face_names(names: Iterable[str]) -> Renames:
    """Rules that rename transformers' weights to torchvision's: ViT, ResNet, ConvNeXt, in files and in memory.

    Networks that Lamina has with transformers' own names (BERT, GPT-2) get no rules.
    """
    return _rules_for(names, _HUGGING_FACE)


def _rules_for(names: Iterable[str], families: tuple[Family, ...]) -> Renames:
    listed = list(names)
    for family in families:
        if any(re.search(family.mark, name) for name in listed):
            return family.rules
    return {}


_VIT_TIMM = {
    r"^cls_token$": "class_token",
    r"^pos_embed$": "encoder.pos_embedding",
    r"^patch_embed\.proj\.": "conv_proj.",
    r"^norm\.": "encoder.ln.",
    r"^head\.": "heads.head.",
    r"^blocks\.(\d+)\.": r"encoder.layers.encoder_layer_\1.",
    r"\.norm([12])\.": r".ln_\1.",
    r"\.attn\.qkv\.": ".self_attention.in_proj_",
    r"\.attn\.proj\.": ".self_attention.out_proj.",
    r"\.mlp\.fc1\.": ".mlp.0.",
    r"\.mlp\.fc2\.": ".mlp.3.",
}
_SWIN_TIMM = {
    r"^patch_embed\.proj\.": "features.0.0.",
    r"^patch_embed\.norm\.": "features.0.2.",
    **{rf"^layers\.{i}\.downsample\.": f"features.{2 * i}." for i in _STAGES},
    **{rf"^layers\.{i}\.blocks\.": f"features.{2 * i + 1}." for i in _STAGES},
    r"^head\.fc\.": "head.",
    r"\.mlp\.fc1\.": ".mlp.0.",
    r"\.mlp\.fc2\.": ".mlp.3.",
}
_CONVNEXT_TIMM = {
    r"^stem\.": "features.0.",
    **{rf"^stages\.{i}\.downsample\.": f"features.{2 * i}." for i in _STAGES},
    **{rf"^stages\.{i}\.blocks\.": f"features.{2 * i + 1}." for i in _STAGES},
    r"^head\.norm\.": "classifier.0.",
    r"^head\.fc\.": "classifier.2.",
    r"\.gamma$": ".layer_scale[-1,1,1]",
    r"\.conv_dw\.": ".block.0.",
    r"\.norm\.": ".block.2.",
    r"\.mlp\.fc1\.": ".block.3.",
    r"\.mlp\.fc2\.": ".block.5.",
}
_REGNET_TIMM = {
    r"^head\.fc\.": "fc.",
    **{rf"^s(\d)\.b{b}\.": rf"trunk_output.block\1.block\1-{b - 1}." for b in _BLOCKS},
    **{rf"\.conv{i}\.": f".f.{name}." for i, name in enumerate("abc", 1)},
    r"\.se\.": ".f.se.",
    r"\.downsample\.": ".proj.",
    r"\.conv\.(\w+)$": r".0.\1",
    r"\.bn\.(\w+)$": r".1.\1",
}
#: The blocks of the first stage have no expansion layer (which widens the channels).
_EFFICIENTNET_TIMM = {
    r"^conv_stem\.": "features.0.0.",
    r"^bn1\.": "features.0.1.",
    r"^conv_head\.": "features.8.0.",
    r"^bn2\.": "features.8.1.",
    r"^classifier\.": "classifier.1.",
    r"\.conv_reduce\.": ".fc1.",
    r"\.conv_expand\.": ".fc2.",
    r"^blocks\.0\.(\d+)\.conv_dw\.": r"features.1.\1.block.0.0.",
    r"^blocks\.0\.(\d+)\.bn1\.": r"features.1.\1.block.0.1.",
    r"^blocks\.0\.(\d+)\.se\.": r"features.1.\1.block.1.",
    r"^blocks\.0\.(\d+)\.conv_pw\.": r"features.1.\1.block.2.0.",
    r"^blocks\.0\.(\d+)\.bn2\.": r"features.1.\1.block.2.1.",
    **{rf"^blocks\.{i}\.(\d+)\.": rf"features.{i + 1}.\1.block." for i in _STAGES if i},
    r"\.block\.conv_pw\.": ".block.0.0.",
    r"\.block\.bn1\.": ".block.0.1.",
    r"\.block\.conv_dw\.": ".block.1.0.",
    r"\.block\.bn2\.": ".block.1.1.",
    r"\.block\.se\.": ".block.2.",
    r"\.block\.conv_pwl\.": ".block.3.0.",
    r"\.block\.bn3\.": ".block.3.1.",
}
#: timm implements the first two linear layers as convolutions.
_VGG_TIMM = {
    r"^pre_logits\.fc1\.weight$": "classifier.0.weight[0,-1]",
    r"^pre_logits\.fc1\.bias$": "classifier.0.bias",
    r"^pre_logits\.fc2\.weight$": "classifier.3.weight[0,-1]",
    r"^pre_logits\.fc2\.bias$": "classifier.3.bias",
    r"^head\.fc\.": "classifier.6.",
}
_TIMM = (
    Family(r"^blocks\.\d+\.attn\.qkv\.", _VIT_TIMM),
    Family(r"^layers\.\d+\.blocks\.\d+\.attn\.relative_position_bias_table$", _SWIN_TIMM),
    Family(r"^stages\.\d+\.blocks\.\d+\.conv_dw\.", _CONVNEXT_TIMM),
    Family(r"^s1\.b1\.conv1\.", _REGNET_TIMM),
    Family(r"^blocks\.0\.0\.se\.conv_reduce\.", _EFFICIENTNET_TIMM),
    Family(r"^pre_logits\.fc1\.", _VGG_TIMM),
)

_VIT_HUGGING_FACE = {
    r"^vit\.": "",
    r"^pooler\.": None,
    r"^embeddings\.cls_token$": "class_token",
    r"^embeddings\.position_embeddings$": "encoder.pos_embedding",
    r"^embeddings\.patch_embeddings\.projection\.": "conv_proj.",
    r"^layernorm\.": "encoder.ln.",
    r"^classifier\.": "heads.head.",
    r"^(?:encoder\.layer|layers)\.(\d+)\.": r"encoder.layers.encoder_layer_\1.",
    **{
        rf"\.attention\.(?:attention\.{name}|{name[0]}_proj)\.(\w+)$": rf".self_attention.in_proj_\1#{i}"
        for i, name in enumerate(("query", "key", "value"))
    },
    r"\.attention\.(?:output\.dense|o_proj)\.": ".self_attention.out_proj.",
    r"\.layernorm_before\.": ".ln_1.",
    r"\.layernorm_after\.": ".ln_2.",
    r"\.(?:intermediate\.dense|mlp\.fc1)\.": ".mlp.0.",
    r"\.(?:output\.dense|mlp\.fc2)\.": ".mlp.3.",
}
_RESNET_HUGGING_FACE = {
    r"^resnet\.": "",
    r"^embedder\.embedder\.convolution\.": "conv1.",
    r"^embedder\.embedder\.normalization\.": "bn1.",
    r"^classifier\.1\.": "fc.",
    **{rf"^encoder\.stages\.{i}\.layers\.": f"layer{i + 1}." for i in _STAGES},
    r"\.shortcut\.convolution\.": ".downsample.0.",
    r"\.shortcut\.normalization\.": ".downsample.1.",
    **{rf"\.layer\.{i}\.convolution\.": f".conv{i + 1}." for i in _STAGES},
    **{rf"\.layer\.{i}\.normalization\.": f".bn{i + 1}." for i in _STAGES},
}
_CONVNEXT_HUGGING_FACE = {
    r"^convnext\.": "",
    r"^embeddings\.patch_embeddings\.": "features.0.0.",
    r"^embeddings\.layernorm\.": "features.0.1.",
    r"^layernorm\.": "classifier.0.",
    r"^classifier\.(weight|bias)$": r"classifier.2.\1",
    **{rf"^encoder\.stages\.{i}\.downsampling_layer\.": f"features.{2 * i}." for i in _STAGES},
    **{rf"^encoder\.stages\.{i}\.layers\.": f"features.{2 * i + 1}." for i in _STAGES},
    r"\.layer_scale_parameter$": ".layer_scale[-1,1,1]",
    r"\.dwconv\.": ".block.0.",
    r"\.layernorm\.": ".block.2.",
    r"\.pwconv1\.": ".block.3.",
    r"\.pwconv2\.": ".block.5.",
}
_HUGGING_FACE = (
    Family(r"(?:^|\.)embeddings\.cls_token$", _VIT_HUGGING_FACE),
    Family(r"(?:^|\.)embedder\.embedder\.convolution\.", _RESNET_HUGGING_FACE),
    Family(r"\.dwconv\.", _CONVNEXT_HUGGING_FACE),
)

#: By the name of a library.
CONVENTIONS: dict[str, Callable[[Iterable[str]], Renames]] = {
    "timm": timm_names,
    "hugging-face": hugging_face_names,
}
