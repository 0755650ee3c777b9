"""PyTorch networks of other packages, random weights, given to `lamina.convert.torch`: how near results are.

    python -m tests.judges.torch_networks                   each network: errors in inference and training
    python -m tests.judges.torch_networks write             writes tests/judges/torch_networks_table.json
    python -m tests.judges.torch_networks write resnet      … of the networks whose name has this in it alone
    python -m tests.judges.torch_networks show resnet18     the calls, and where results differ
    python -m tests.judges.torch_networks on cuda compiled LIST SECONDS JOBS
                                                            on a GPU, by torch.compile(backend="lamina") ("converted":
                                                            by from_torch): the networks of a comma-separated list

All of torchvision's networks for classification and segmentation, those for video, the smallest network of each
family of timm, small networks of all kinds of transformers, torchaudio's and torch.nn's networks for sequences.
Images are of the first size of SIZES that the network takes. What drops at random in
training does not (its probability is set to 0). The error of outputs is over
the largest element, that of gradients over the largest element of all gradients. Where few numbers stand behind a
batch's statistics, float32 is far from the true result in either library: such networks are compared in float64, and
where even that is too coarse, on MORE images. Networks of at most COMPILED parameters are compared under
torch.compile, too; "left" is what PyTorch runs of them. What `from_torch` refuses says so in the table.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.judges import small_transformers
from tests.judges.beside import judged
from tests.judges.small_transformers import KINDS

TABLE = Path(__file__).with_name("torch_networks_table.json")
#: Heights and widths of images, from the smallest.
SIZES = (64, 96, 128, 224, 256, 299, 384)
#: What outputs and gradients may differ by.
OUTPUT, GRADIENT = 1e-4, 1e-3
#: … in float64, where PyTorch's own float32 is too far from it.
EXACT = (1e-9, 1e-8)
#: How many images a batch has, and how many where the statistics of so few are too coarse.
IMAGES, MORE = 2, 16
#: How many parameters a network may have to be trained; of larger ones the outputs are compared in inference, and the
#: graph of training is made.
MOST = 150e6

#: How many parameters a network may have to be compared under torch.compile, too.
COMPILED = 3e6

#: A network and its inputs.
Example = tuple[Any, tuple[Any, ...], dict[str, Any]]


def networks(part: str = "") -> list[str]:
    """The names of all networks, of those whose name has `part` in it."""
    place, slash, _ = part.partition("/")
    found = [
        f"{own}/{name}"
        for own, (names, _) in _places().items()
        if own == place or not slash
        for name in names()
    ]
    return [name for name in found if part in name]


def made(network: str) -> Example:
    """A network and its inputs, by its name."""
    place, name = network.split("/", 1)
    return _places()[place][1](name)


def _places() -> dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], Example]]]:
    """Where networks come from: their names, and how one is made."""
    return {
        "torchvision": (_vision_names, _vision),
        "video": (_moving, lambda name: _steady(_moving()[name]())),
        "timm": (_timm_names, _timm),
        "transformers": (_transformers, lambda name: _transformers()[name]()),
        "torchaudio": (_audio, lambda name: _steady(_audio()[name]())),
        "torch": (_recurrent_names, _recurrent),
        "user": (_users, lambda name: (*_made_by_users(name), {})),
    }


@cache
def _package() -> Any:
    """timm, which imports torchvision: so the helper that makes that possible comes first."""
    _vision_names()
    import timm

    return timm


def _vision_names() -> list[str]:
    from tests.helpers.vision import models

    places = (models, models.segmentation)
    return [n for place in places for n in models.list_models(module=place)]


def _vision(name: str) -> Example:
    from tests.helpers.vision import models

    backbone = {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
    return _with_image(models.get_model(name, weights=None, **backbone))


@cache
def _timm_names() -> list[str]:
    """The smallest network of each family that has one of at most MOST parameters."""
    import torch

    timm = _package()
    found = []
    for family in timm.list_modules():
        sizes: dict[str, int] = {}
        for name in _likely_small(timm.list_models(module=family)):
            try:
                with torch.device("meta"):
                    sizes[name] = sum(p.numel() for p in timm.create_model(name).parameters())
            except Exception:  # a network that cannot be made without memory
                continue
        if sizes and min(sizes.values()) <= MOST:
            found.append(min(sizes, key=lambda n: (sizes[n], n)))
    return found


def _likely_small(names: list[str]) -> list[str]:
    """Four of a family's names, those in front that say of themselves that they are small."""
    hints = (
        "pico",
        "nano",
        "atto",
        "femto",
        "tiny",
        "mini",
        "micro",
        "_xxs",
        "_xs",
        "small",
        "_s",
        "18",
        "050",
    )
    return sorted(names, key=lambda n: (-any(h in n for h in hints), len(n), n))[:4]


def _timm(name: str) -> Example:
    timm = _package()
    return _with_image(timm.create_model(name))


def _steady(example: Example) -> Example:
    """The network without what drops at random."""
    return without_chance(example[0]), *example[1:]


def _moving() -> dict[str, Callable[[], Example]]:
    """torchvision's networks for video and motion."""
    from tests.judges.sound_and_video import MOVING

    return MOVING


def _with_image(net: Any) -> Example:
    """The network with a batch of images of the smallest size that it takes, of 224 where it is large."""
    import torch

    without_chance(net)
    error: Exception = ValueError("no size")
    for size in (224,) if _is_large(net) else SIZES:
        x = torch.rand(IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                for mode in (True, False):
                    net.train(mode)(x)
            return net, (x,), {}
        except Exception as problem:  # whatever a network's own code says of a size
            error = problem
    raise error


def _is_large(net: Any) -> bool:
    return sum(p.numel() for p in net.parameters()) > MOST


def _transformers() -> dict[str, Callable[[], Example]]:
    """Small networks of each kind, and those of the sizes that were published."""
    import torch

    import tests.helpers.audio_extension  # noqa: F401  transformers imports torchaudio where it is installed

    _vision_names()  # … and torchvision
    import transformers as tf

    ids = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    few = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}

    def bert(**sizes: int) -> Example:
        given = {"input_ids": ids, "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
        return without_chance(tf.BertModel(tf.BertConfig(**sizes))), (), given

    def gpt2(**sizes: int) -> Example:
        net = tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False, **sizes))
        return without_chance(net), (), {"input_ids": ids}

    def vit(image_size: int = 224, **sizes: int) -> Example:
        net = tf.ViTForImageClassification(tf.ViTConfig(image_size=image_size, **sizes))
        return without_chance(net), (torch.rand(IMAGES, 3, image_size, image_size),), {}

    return {
        **_small_transformers(tf, ids),
        **{name: partial(_other_transformer, name) for name in KINDS},
        "BERT": lambda: bert(vocab_size=50, **small),
        "BERT base": bert,
        "GPT-2": lambda: gpt2(n_positions=16, n_embd=32, n_layer=2, n_head=4, **few),
        "GPT-2 base": gpt2,
        "ViT": lambda: vit(image_size=32, patch_size=8, **small),
        "ViT base": vit,
    }


def _other_transformer(name: str) -> Example:
    net, given = small_transformers.made(name)
    return without_chance(net), (), given


def _small_transformers(tf: Any, ids: Any) -> dict[str, Callable[[], Example]]:
    """One of each kind, of two layers. ids: [2, 7]."""
    import torch

    said = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    decoder = {"vocab_size": 50, "num_key_value_heads": 2, "use_cache": False, **small, **said}
    both: dict[str, Any] = {
        "vocab_size": 50,
        "d_model": 32,
        "use_cache": False,
        "decoder_start_token_id": 0,
        **said,
    }
    both |= {f"{part}_{name}": n for part in ("encoder", "decoder")
             for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
    picture = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sound = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(0))
    clip = {"text_config": {"vocab_size": 50, "max_position_embeddings": 16, **small, **said},
            "vision_config": {"image_size": 32, "patch_size": 8, **small}, "projection_dim": 16}  # fmt: skip
    segformer: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4, "decoder_hidden_size": 16,
                                 "num_attention_heads": [1, 2, 2, 4]}  # fmt: skip
    t5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
          "use_cache": False, "decoder_start_token_id": 0}  # fmt: skip
    kinds: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
        "DistilBERT": ("DistilBertConfig", "DistilBertModel", {
            "vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
        }, {"input_ids": ids}),
        "LLaMA": ("LlamaConfig", "LlamaForCausalLM", decoder, {"input_ids": ids}),
        "Mistral": ("MistralConfig", "MistralForCausalLM", {**decoder, "sliding_window": 4}, {"input_ids": ids}),
        "Mixtral": ("MixtralConfig", "MixtralForCausalLM", {**decoder, "num_local_experts": 4}, {"input_ids": ids}),
        "T5": ("T5Config", "T5ForConditionalGeneration", t5, {"input_ids": ids, "labels": ids}),
        "BART": ("BartConfig", "BartForConditionalGeneration", {**both, "forced_eos_token_id": 0},
                 {"input_ids": ids, "labels": ids}),
        "Whisper": ("WhisperConfig", "WhisperForConditionalGeneration", {
            **both, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16,
        }, {"input_features": sound, "decoder_input_ids": ids}),
        "CLIP": ("CLIPConfig", "CLIPModel", clip, {"input_ids": ids, "pixel_values": picture}),
        "Mamba": ("MambaConfig", "MambaForCausalLM", {
            "vocab_size": 50, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "use_cache": False,
        }, {"input_ids": ids}),
        "SegFormer": ("SegformerConfig", "SegformerForSemanticSegmentation", segformer, {
            "pixel_values": torch.nn.functional.interpolate(picture, scale_factor=2),
        }),
    }  # fmt: skip

    def of(config: str, network: str, options: dict[str, Any], given: dict[str, Any]) -> Example:
        return without_chance(getattr(tf, network)(getattr(tf, config)(**options))), (), given

    return {name: partial(of, *kind) for name, kind in kinds.items()}


def _audio() -> dict[str, Callable[[], Example]]:
    """Networks for speech: as small ones, and wav2vec 2.0 as it was published."""
    import torch

    from tests.helpers.audio import models
    from tests.judges.sound_and_video import SOUND

    def conformer() -> Example:
        net = models.Conformer(
            input_dim=16, num_heads=4, ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=7
        )
        return without_chance(net), (torch.randn(2, 20, 16), torch.tensor([20, 13])), {}

    def wav2vec2(**sizes: Any) -> Example:
        net = models.wav2vec2_model(
            extractor_mode="group_norm", extractor_conv_layer_config=None, extractor_conv_bias=False,
            encoder_projection_dropout=0.0, encoder_attention_dropout=0.0, encoder_ff_interm_dropout=0.0,
            encoder_dropout=0.0, encoder_layer_norm_first=False, encoder_layer_drop=0.0, aux_num_out=None, **sizes,
        )  # fmt: skip
        return net, (torch.randn(2, 4000), torch.tensor([4000, 3000])), {}

    small = {"encoder_embed_dim": 32, "encoder_pos_conv_kernel": 16, "encoder_pos_conv_groups": 4,
             "encoder_num_layers": 2, "encoder_num_heads": 4, "encoder_ff_interm_features": 64}  # fmt: skip
    base = {"encoder_embed_dim": 768, "encoder_pos_conv_kernel": 128, "encoder_pos_conv_groups": 16,
            "encoder_num_layers": 12, "encoder_num_heads": 12, "encoder_ff_interm_features": 3072}  # fmt: skip
    return {
        **SOUND,
        "Conformer": conformer,
        "wav2vec 2.0": lambda: wav2vec2(**small),
        "wav2vec 2.0 base": lambda: wav2vec2(**base),
    }


def _recurrent_names() -> list[str]:
    return ["LSTM", "GRU", "RNN", "Transformer"]


def _recurrent(kind: str) -> Example:
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 12)
            both: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}
            self.net: Any = (
                nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(12, 3, 24, batch_first=True), 2, enable_nested_tensor=False
                )
                if kind == "Transformer"
                else getattr(nn, kind)(12, 6, **both)
            )
            self.head = nn.Linear(12, 5)

        def forward(self, ids: Any) -> Any:
            y = self.net(self.table(ids))
            return self.head(y if kind == "Transformer" else y[0])

    net = without_chance(Network())
    return net, (torch.randint(0, 20, (3, 9), generator=torch.Generator().manual_seed(0)),), {}


def _users() -> list[str]:
    from tests.convert.torch.test_user_code import PROGRAMS

    return list(PROGRAMS)


def _made_by_users(name: str) -> tuple[Any, tuple[Any, ...]]:
    from tests.convert.torch.test_user_code import PROGRAMS

    net, *args = PROGRAMS[name]()
    return net, tuple(args)


def in_mode(net: Any, mode: str) -> Any:
    """The network in a mode; what drops whole layers by a number that it draws in Python drops none."""
    net.train(mode == "train")
    for module in net.modules():
        if hasattr(module, "layer_drop"):
            module.training = False
    return net


def without_chance(net: Any) -> Any:
    """The network with every probability to drop something set to 0."""
    for module in net.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
        dropping = "drop" in type(module).__name__.lower() or type(module).__name__ == "StochasticDepth"
        if dropping and isinstance(getattr(module, "p", None), (int, float)):
            module.p = 0.0
    return net


def by_conversion(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool) -> list[float]:
    """The errors of outputs and gradients of the converted network."""
    from lamina.convert.torch import check, from_torch

    converted = from_torch(net, *args, example=kwargs, share=False)
    parity = check(net, converted, *args, gradients=gradients, **kwargs)
    return _short(parity.output, parity.gradient)


def by_compiling(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool) -> list[float]:
    """The errors of outputs and gradients of the network under torch.compile(backend="lamina")."""
    import torch

    from lamina.convert.torch.backend import lamina
    from lamina.convert.torch.memory import copied

    torch.compiler.reset()
    nets = net, copied(net)
    runs = nets[0], torch.compile(nets[1], backend=lamina)
    found = [
        _outputs_and_gradients(m, run, args, kwargs, gradients) for m, run in zip(nets, runs, strict=True)
    ]
    (wanted, slopes), (given, made) = found
    most = max((float(g.abs().max()) for g in slopes if g.numel()), default=1.0)
    errors = [
        _apart(y, w, float(w.abs().max()) if w.numel() else 1.0) for y, w in zip(given, wanted, strict=True)
    ]
    return _short(
        max(errors), max((_apart(g, s, most) for g, s in zip(made, slopes, strict=True)), default=0.0)
    )


def _outputs_and_gradients(
    net: Any, run: Any, args: Any, kwargs: Any, gradients: bool
) -> tuple[list[Any], list[Any]]:
    """Floating point outputs, and each parameter's gradient of their weighted sum; in float64."""
    import torch
    from torch.utils._pytree import tree_leaves

    with torch.set_grad_enabled(gradients):
        outputs = [y for y in tree_leaves(run(*args, **kwargs)) if isinstance(y, torch.Tensor)]
        outputs = [y for y in outputs if y.is_floating_point()]
    if gradients:
        weights = torch.Generator().manual_seed(0)
        terms = [
            (y * (1 + torch.rand(y.shape, generator=weights).to(y))).sum() for y in outputs if y.requires_grad
        ]
        sum(terms[1:], terms[0]).backward()
    slopes = (
        [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()] if gradients else []
    )
    net.zero_grad()
    return [y.detach().double() for y in outputs], [s.double() for s in slopes]


def _apart(found: Any, wanted: Any, scale: float) -> float:
    """The largest difference over the scale; infinite where shapes or what is finite differ."""
    if found.shape != wanted.shape or not (found.isfinite() == wanted.isfinite()).all():
        return float("inf")
    difference = (found - wanted)[wanted.isfinite()].abs()
    return float(difference.max()) / (scale or 1.0) if difference.numel() else 0.0


def judge_on(device: str, way: str, name: str) -> dict[str, Any]:
    """What came out for one network on a device, in inference and in training, in float64 where that decides."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    compare = by_compiling if way == "compiled" else by_conversion
    started = time.perf_counter()
    found: dict[str, Any] = {}

    def on(x: Any, dtype: Any = None) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, dtype if x.is_floating_point() else None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            net, args, kwargs = made(name)
            for mode in ("eval", "train"):
                for dtype, bounds in ((torch.float32, (OUTPUT, GRADIENT)), (torch.float64, EXACT)):
                    key = f"{mode}, float64" * (dtype is torch.float64) or mode
                    twin = in_mode(net.to(device, dtype), mode)
                    given = tuple(on(x, dtype) for x in args), {k: on(x, dtype) for k, x in kwargs.items()}
                    found[key] = compare(twin, *given, mode == "train")
                    if _near(found[key], bounds):
                        break
        except Exception as error:  # whatever goes wrong is the outcome
            found["error"] = f"{type(error).__name__}: {str(error)[:700]}"
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def judge(name: str) -> dict[str, Any]:
    """What came out for one network: errors by mode, or what is said in place of them."""
    import torch

    from lamina.convert.torch import check, from_torch

    started = time.perf_counter()
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            net, args, kwargs = made(name)
        except Exception as error:
            return {"made": f"{type(error).__name__}: {str(error)[:200]}"}
        for mode in ("eval", "train"):
            try:
                in_mode(net, mode)
                if mode == "train" and _is_large(net):
                    found[mode] = _graph_alone(net, args)
                    break
                converted = from_torch(net, *args, example=kwargs, share=False)
                found["calls"] = sum(n for n, _ in converted.report.calls.values())
                parity = check(net, converted, *args, gradients=mode == "train", **kwargs)
                found[mode] = _short(parity.output, parity.gradient)
                del converted, parity
                if not _near(found[mode]):
                    found[f"{mode}, float64"] = _in_float64(net, args, kwargs)
                    if not _near(found[f"{mode}, float64"], EXACT) and args:
                        found[f"{mode}, float64"] = _in_float64(net, tuple(map(_more, args)), kwargs)
                        found["images"] = MORE
            except Exception as error:  # whatever goes wrong is the outcome
                said = " ".join([str(error), *getattr(error, "__notes__", [])])
                found[mode] = f"{type(error).__name__}: {without_places(said)[:700]}"
    if sum(p.numel() for p in net.parameters()) <= COMPILED:
        found["compiled"] = _compiled(name)
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def without_places(text: str) -> str:
    """A text without the folders in which packages lie on this machine."""
    return re.sub(r"/\S*/(?:site|dist)-packages/", "", text)


def _compiled(name: str) -> dict[str, Any]:
    """The errors under torch.compile by mode, in float64 where float32 is too coarse; what PyTorch runs of it."""
    import torch

    found: dict[str, Any] = {}
    with _Said() as said:
        for mode in ("eval", "train"):
            torch.manual_seed(0)
            net, args, kwargs = made(name)  # anew: what a call leaves behind cannot be copied
            in_mode(net, mode)
            try:
                found[mode] = by_compiling(net, args, kwargs, mode == "train")
                if not _near(found[mode]):
                    wide = tuple(map(_wide, args)), {k: _wide(x) for k, x in kwargs.items()}
                    found[f"{mode}, float64"] = by_compiling(net.double(), *wide, mode == "train")
            except Exception as error:  # whatever goes wrong is the outcome
                found[mode] = f"{type(error).__name__}: {without_places(str(error))[:300]}"
    return found | ({"left": sorted(said.texts)} if said.texts else {})


class _Said(logging.Handler):
    """What `lamina.convert` says within the block of what PyTorch runs, without the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()

    def __enter__(self) -> _Said:
        logger = logging.getLogger("lamina.convert")
        logger.addHandler(self)
        logger.propagate = False
        return self

    def __exit__(self, *error: object) -> None:
        logger = logging.getLogger("lamina.convert")
        logger.removeHandler(self)
        logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the function and the reason."""
        words = re.sub(r" \(File .*?\)", "", record.getMessage().removeprefix("backend='lamina': "))
        self.texts.add(words[:200])


def _short(*errors: float) -> list[float]:
    return [float(f"{v:.1e}") for v in errors]


def _near(errors: Any, bounds: tuple[float, float] = (OUTPUT, GRADIENT)) -> bool:
    """Whether outputs and gradients are near enough."""
    return isinstance(errors, list) and all(e <= most for e, most in zip(errors, bounds, strict=True))


def _in_float64(net: Any, args: Any, kwargs: Any) -> list[float]:
    """The errors of the network in float64."""
    from lamina.convert.torch import check, from_torch

    args, kwargs = tuple(map(_wide, args)), {k: _wide(x) for k, x in kwargs.items()}
    try:
        net.double()  # and back: no second copy of large networks
        parity = check(net, from_torch(net, *args, example=kwargs), *args, **kwargs)
    finally:
        net.float()
    return _short(parity.output, parity.gradient)


def _wide(x: Any) -> Any:
    import torch

    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _more(x: Any) -> Any:
    """A batch of images with more of them."""
    import torch

    return torch.rand(MORE, *x.shape[1:], generator=torch.Generator().manual_seed(1), dtype=x.dtype)


def _graph_alone(net: Any, args: Any) -> str:
    """What is said of a network that is too large: its calls, and those without a counterpart."""
    from lamina.convert.torch.exporting import Inputs, export

    program = export(net, *Inputs.of(args, {})).program
    unknown = program.unknown()
    return f"too large: {len(program.nodes())} calls, {len(unknown)} without a counterpart"


def agrees(outcome: dict[str, Any]) -> bool:
    """Whether outputs and gradients are near enough in both modes, by every way that was tried.

    What `from_torch` refuses with its reason agrees where torch.compile does.
    """
    compiled = outcome.get("compiled", {})
    for mode in ("eval", "train") if compiled else ():
        exact = f"{mode}, float64"
        if not _near(compiled.get(mode)) and not _near(compiled.get(exact), EXACT):
            return False
    for mode in ("eval", "train"):
        result = outcome.get(mode)
        whole = isinstance(result, str) and result.startswith("too large") and " 0 without" in result
        whole = whole or (bool(compiled) and refused(outcome, mode))
        exact = _near(outcome.get(f"{mode}, float64"), EXACT)
        if not whole and not exact and not _near(result):
            return False
    return True


def refused(outcome: dict[str, Any], mode: str) -> bool:
    """Whether `from_torch` makes no graph of the network in a mode, and says why."""
    return str(outcome.get(mode)).startswith("TorchConversionError")


def show(name: str) -> None:
    """Print a network's report and where its results differ."""
    from lamina.convert.torch import check, from_torch

    net, args, kwargs = made(name)
    converted = from_torch(net, *args, example=kwargs, share=False)
    print(converted.report)
    print(check(net, converted, *args, **kwargs))


def main(arguments: list[str]) -> None:
    """The command line of the docstring."""
    if arguments[:1] == ["show"]:
        show(networks(arguments[1])[0])
        return
    if arguments[:1] == ["on"]:
        device, way, names, seconds, jobs = arguments[1:]
        judge_there = partial(judge_on, device, way)
        for name, outcome in judged(judge_there, names.split(","), float(seconds), int(jobs)):
            print(
                "ok " if outcome and agrees(outcome) else "NOT",
                way,
                name,
                outcome or "not decided",
                flush=True,
            )
        return
    write = arguments[:1] == ["write"]
    part = arguments[-1] if arguments and arguments[-1] != "write" else ""
    for name in networks(part):
        outcome = judge(name)
        print("ok " if agrees(outcome) else "NOT", name, outcome, flush=True)
        if write:
            table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
            table[name] = {k: v for k, v in outcome.items() if k != "seconds"}
            TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
