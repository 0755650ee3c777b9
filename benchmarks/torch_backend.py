"""An unchanged PyTorch training loop or inference: eager, torch.compile, `backend="lamina"`, the network converted.

    python -m benchmarks.torch_backend [--device cpu] [--only resnet18 lstm] [--ways eager lamina] [--out FOLDER]
    python -m benchmarks.torch_backend --device cuda --ahead 16
    python -m benchmarks.torch_backend --device cuda --only torchvision/regnet_y_400mf timm/mixer_b16_224 --batch 64
    python -m benchmarks.torch_backend --device cuda --infer --batch 1 --ways reduce-overhead converted

A step is forward pass, loss, backward pass and SGD with momentum, on a GPU under bf16 autocast; with `--infer` it is
the forward pass alone, on a GPU with everything in bf16. Each network in each
way has a process of its own; `--ahead` of them are prepared concurrently (which counts in their
first steps), then each is timed while the others wait, network by network. A time is the median of rounds.
`converted` is `lamina.convert.from_torch` with `lamina.train_step` or a `Predictor`. A way that fails has its error
in place of a time. The network `small` is pure overhead. Batches are small on a CPU, and those of the literature on a
GPU. The result file is written after every group of processes.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lamina as lm
from benchmarks.common import processor, versions, write
from benchmarks.varied_networks import (
    DcGan,
    Dlrm,
    Edsr,
    LanguageLstm,
    Nerf,
    PatchTst,
    PointNet,
    Pooled,
    Recognizer,
    Tcn,
    UNet3d,
    VqVae,
    clip_images,
    whisper_encoder,
)
from lamina import convert, ops, optim
from lamina.convert.torch.backend import lamina

WAYS = ("eager", "compile", "reduce-overhead", "lamina", "converted")
Batch = tuple[torch.Tensor, torch.Tensor]


class Recurrent(nn.Module):
    """A recurrent layer and a linear head on its last output."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.rnn, self.head = layer, nn.Linear(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        return self.head(y[:, -1])  # type: ignore[no-any-return]


def vision(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    """One of torchvision's networks."""

    def make() -> nn.Module:
        from tests.helpers.vision import models

        return getattr(models, name)(num_classes=10, **kwargs)  # type: ignore[no-any-return]

    return make


def created(name: str) -> nn.Module:
    """One of timm's networks; torchvision, which it uses, is imported first, as the helper does."""
    importlib.import_module("tests.helpers.vision")
    import timm

    return timm.create_model(name, num_classes=10)  # type: ignore[no-any-return]


def small_vit() -> nn.Module:
    """ViT-S/16."""
    from tests.helpers.vision import models

    return models.VisionTransformer(224, 16, 12, 6, 384, 1536, num_classes=10)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Network:
    """A network's constructor, the size of a sample, batch on a CPU and on a GPU; `words`: the vocabulary, if samples
    are token ids."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    on_cpu: int
    on_gpu: int
    words: int = 0

    @classmethod
    def named(cls, name: str) -> Network:
        """One of `NETWORKS`, or `torchvision/...`, `timm/...`: images of 224 x 224."""
        library, _, builder = name.partition("/")
        if not builder:
            return NETWORKS[name]
        if library == "torchvision":
            return cls(vision(builder), (3, 224, 224), 2, 64)
        return cls(lambda: created(builder), (3, 224, 224), 2, 64)

    def samples(self, device: str, asked: int | None) -> int:
        """Samples per step."""
        return asked or (self.on_gpu if device == "cuda" else self.on_cpu)

    def batch(self, device: str, asked: int | None) -> Batch:
        """Random inputs and labels."""
        shape = self.samples(device, asked), *self.shape
        x = torch.randint(0, self.words, shape) if self.words else torch.randn(shape)
        return x.to(device), torch.randint(0, 10, shape[:1], device=device)


class Encoder(nn.Module):
    """PyTorch's own transformer encoder over words, and a linear head on the mean of its outputs."""

    def __init__(self, words: int = 32000, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))  # type: ignore[no-any-return]


class GroupedBlock(nn.Module):
    """Group norm, SiLU and a 3×3 convolution, twice, with a residual connection."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, channels), nn.GroupNorm(32, filters)
        self.conv1 = nn.Conv2d(channels, filters, 3, padding=1)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1)
        self.skip = nn.Identity() if channels == filters else nn.Conv2d(channels, filters, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(nn.functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(inner)))  # type: ignore[no-any-return]


class PlacesAttention(nn.Module):
    """Self-attention over all positions of an image, after group norm."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, channels), heads
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, c, h, w = x.shape
        places = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(places).unflatten(2, (3, self.heads, c // self.heads)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(found).transpose(1, 2).unflatten(2, (h, w))


class DiffusionUNet(nn.Module):
    """A U-Net of diffusion models (without time steps), and a linear head on the mean over all positions."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        wide = (width, 2 * width, 2 * width)
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up, skips, channels = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, filters in enumerate(wide):
            for _ in range(2):
                self.down.append(GroupedBlock(channels, filters))
                skips.append(channels := filters)
            if level < 2:
                self.down.append(nn.Conv2d(channels, channels, 3, 2, 1))
                skips.append(channels)
        self.middle = nn.Sequential(PlacesAttention(channels, 4), GroupedBlock(channels, channels))
        for level, filters in reversed(list(enumerate(wide))):
            for _ in range(3):
                self.up.append(GroupedBlock(channels + skips.pop(), filters))
                channels = filters
            if level:
                self.up.append(
                    nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Conv2d(channels, channels, 3, 1, 1))
                )
        self.norm, self.head = nn.GroupNorm(32, channels), nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [x := self.stem(x)]
        for layer in self.down:
            kept.append(x := layer(x))
        x = self.middle(x)
        for layer in self.up:
            x = layer(torch.cat([x, kept.pop()], 1) if isinstance(layer, GroupedBlock) else x)
        return self.head(nn.functional.silu(self.norm(x)).mean((2, 3)))  # type: ignore[no-any-return]


def bert() -> nn.Module:
    """transformers' BERT with a head for classes, 12 layers of 768."""
    import transformers

    config = transformers.BertConfig(num_labels=10)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=x).logits  # type: ignore[no-any-return]

    return Logits()


class Language(nn.Module):
    """One of transformers' language models, by its configuration with some changes; the last hidden states."""

    def __init__(self, kind: str, changes: dict[str, Any]) -> None:
        super().__init__()
        import transformers

        config = transformers.AutoConfig.for_model(kind, **changes)
        self.model = transformers.AutoModel.from_config(config)
        self.decodes = config.is_encoder_decoder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = {"input_ids": x} | ({"decoder_input_ids": x} if self.decodes else {})
        return self.model(**words).last_hidden_state  # type: ignore[no-any-return]


def language(kind: str, width: int, **changes: Any) -> Callable[[], nn.Module]:
    """The mean over all tokens, and a head."""
    return lambda: Pooled(Language(kind, changes | {"use_cache": False}), width, lambda y: y.mean(1))


def llama_like(layers: int, shared: int) -> dict[str, Any]:
    """The sizes for Llama and similar models: eight heads of 64, `shared` query heads per key head."""
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": layers, "vocab_size": 32000}
    return sizes | {"num_attention_heads": 8, "num_key_value_heads": 8 // shared}


ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 128}
MODERN = llama_like(3, 1) | {"intermediate_size": 1024, "pad_token_id": 0}
#: Relative positions, in both directions, in 64 buckets.
DEBERTA: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "vocab_size": 30000,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 64,
}


def segmentation(name: str) -> Callable[[], nn.Module]:
    """One of torchvision's networks for segmentation, and a head on the mean over all positions of its result."""

    def make() -> nn.Module:
        from tests.helpers.vision import models

        net = getattr(models.segmentation, name)(weights=None, weights_backbone=None, num_classes=10)
        return Pooled(net, 10, lambda y: y["out"].mean((2, 3)))

    return make


def clips(name: str) -> Callable[[], nn.Module]:
    """One of torchvision's networks for video."""

    def make() -> nn.Module:
        from tests.helpers.vision import models

        return getattr(models.video, name)(num_classes=10)  # type: ignore[no-any-return]

    return make


#: Networks that are not named by a library.
NETWORKS: dict[str, Network] = {
    "small": Network(lambda: nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)), (32,), 8, 8),
    "resnet18": Network(vision("resnet18"), (3, 112, 112), 4, 256),
    "resnet50": Network(vision("resnet50"), (3, 224, 224), 2, 128),
    "alexnet": Network(vision("alexnet"), (3, 224, 224), 4, 256),
    "vgg16": Network(vision("vgg16"), (3, 224, 224), 1, 64),
    "mobilenet_v2": Network(vision("mobilenet_v2"), (3, 112, 112), 4, 128),
    "efficientnet_b0": Network(vision("efficientnet_b0"), (3, 224, 224), 2, 128),
    "vit_s": Network(small_vit, (3, 224, 224), 2, 128),
    "lstm": Network(lambda: Recurrent(nn.LSTM(512, 512, batch_first=True), 512), (50, 512), 8, 8),
    "gru_bidirectional": Network(
        lambda: Recurrent(nn.GRU(512, 512, batch_first=True, bidirectional=True), 1024), (50, 512), 8, 8
    ),
    "encoder": Network(Encoder, (256,), 1, 64, words=32000),
    "bert": Network(bert, (128,), 1, 64, words=30000),
    "diffusion": Network(DiffusionUNet, (3, 64, 64), 1, 32),
    "llama": Network(language("llama", 512, **llama_like(6, 2)), (256,), 1, 32, words=32000),
    "qwen2": Network(language("qwen2", 512, **llama_like(3, 4)), (256,), 1, 32, words=32000),
    "gpt2": Network(language("gpt2", 768), (256,), 1, 16, words=50000),
    "t5_small": Network(language("t5", 512), (128,), 1, 32, words=32000),
    "distilbert": Network(language("distilbert", 768), (128,), 1, 32, words=30000),
    "albert": Network(language("albert", 768, **ALBERT), (128,), 1, 32, words=30000),
    "modernbert": Network(language("modernbert", 512, **MODERN), (256,), 1, 32, words=32000),
    "deberta": Network(language("deberta-v2", 384, **DEBERTA), (128,), 1, 16, words=30000),
    "pointnet": Network(PointNet, (3, 1024), 2, 64),
    "edsr": Network(Edsr, (3, 48, 48), 1, 32),
    "dcgan": Network(DcGan, (100, 1, 1), 2, 128),
    "nerf": Network(Nerf, (3,), 8, 65536),
    "dlrm": Network(Dlrm, (26,), 2, 4096, words=10000),
    "patchtst": Network(PatchTst, (7, 512), 2, 64),
    "unet3d": Network(UNet3d, (1, 64, 64, 64), 1, 4),
    "tcn": Network(Tcn, (25, 400), 2, 64),
    "vqvae": Network(VqVae, (3, 64, 64), 2, 64),
    "lstm_words": Network(LanguageLstm, (35,), 1, 32, words=10000),
    "crnn": Network(Recognizer, (1, 32, 128), 2, 64),
    "whisper": Network(whisper_encoder, (80, 3000), 1, 8),
    "clip": Network(clip_images, (3, 224, 224), 1, 64),
    "r3d_18": Network(clips("r3d_18"), (3, 8, 112, 112), 1, 16),
    "deeplabv3_mobilenet": Network(segmentation("deeplabv3_mobilenet_v3_large"), (3, 256, 256), 1, 16),
    "lraspp_mobilenet": Network(segmentation("lraspp_mobilenet_v3_large"), (3, 256, 256), 1, 16),
}


def in_pytorch(way: str, model: nn.Module, batch: Batch) -> Callable[[], Any]:
    """One step of an ordinary loop over the network, compiled in the given way."""
    backend: dict[str, Any] = {"compile": {}, "reduce-overhead": {"mode": "reduce-overhead"}}.get(way, {})
    backend = {"backend": lamina} if way == "lamina" else backend
    run = model if way == "eager" else torch.compile(model, **backend)
    if not model.training:
        return lambda: torch.no_grad()(run)(batch[0])
    return looped(run, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), batch)


def looped(run: Callable[..., Any], rule: torch.optim.Optimizer, batch: Batch) -> Callable[[], Any]:
    """One step of an ordinary loop over a network, on a GPU under bf16 autocast; returns the loss."""
    x, labels = batch

    def step() -> Any:
        rule.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=x.is_cuda):
            loss = nn.functional.cross_entropy(run(x), labels)
        loss.backward()
        rule.step()
        return loss.detach()

    return step


def converted(model: nn.Module, batch: Batch) -> Callable[[], Any]:
    """One step of the converted network."""
    x, labels = batch
    precision = "bf16" if x.is_cuda else "fp32"
    net = convert.from_torch(model, x)
    if not model.training:
        predictor, given = lm.infer.Predictor(net, device=str(x.device), precision=precision), lm.tensor(x)
        return lambda: predictor(given)
    rule = optim.SGD(lr=1e-3, momentum=0.9)
    step = lm.train_step(net, ops.cross_entropy, rule, device=str(x.device), precision=precision)
    return lambda: step(x, labels)


def in_bfloat16(batch: Batch) -> Batch:
    """Floating point inputs rounded, token ids as they are."""
    x, labels = batch
    return x.bfloat16() if x.is_floating_point() else x, labels


def finished(result: Any) -> float:
    """An element of a loss or an output of either library, which its device has then computed."""
    return float(result.reshape(-1)[0])


def worker(line: Connection, name: str, way: str, given: argparse.Namespace) -> None:
    """A process for one network in one way: sends seconds to its first step, then on each request the time of a step.

    Sends a text in place of either if it fails.
    """
    if given.threads:
        torch.set_num_threads(given.threads)
    network, device = Network.named(name), given.device
    torch.manual_seed(0)
    model = network.make().to(device).train(not given.infer)
    batch = network.batch(device, given.batch)
    if given.infer and device == "cuda":
        model, batch = model.bfloat16(), in_bfloat16(batch)
    begin = time.perf_counter()
    try:
        step = converted(model, batch) if way == "converted" else in_pytorch(way, model, batch)
        finished(step())
        line.send(time.perf_counter() - begin)
        for _ in range(3):
            finished(step())
        while seconds := line.recv():
            line.send(timed(step, seconds))
    except EOFError:
        return
    except Exception as error:  # a failure is a result
        line.send(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")


@dataclass
class Case:
    """One network in one way, in its process. first_s, ms: numbers, or an error text."""

    name: str
    way: str
    line: Connection
    process: SpawnProcess
    first_s: Any = None
    ms: Any = None

    @classmethod
    def start(cls, name: str, way: str, given: argparse.Namespace) -> Case:
        """Begin to prepare it."""
        context = get_context("spawn")
        line, end = context.Pipe()
        process = context.Process(target=worker, args=(end, name, way, given), daemon=False)
        process.start()
        end.close()
        return cls(name, way, line, process)

    def prepare(self, until: float) -> None:
        """Wait for the first step, at most until that time of the clock; a late one is terminated, as it would
        disturb the timing of others."""
        answer = self._answer(until - time.monotonic())
        self.first_s, self.ms = (answer, None) if isinstance(answer, float) else (None, answer)
        if self.first_s is None:
            self.process.kill()
            self.process.join()

    def measure(self, rounds: int, seconds: float) -> None:
        """Time it, if it is prepared."""
        times: list[float] = []
        while self.first_s is not None and len(times) < rounds:
            with suppress(BrokenPipeError):  # it failed after its first step, and has said why
                self.line.send(seconds)
            answer = self._answer(60 + 10 * seconds)
            if not isinstance(answer, float):
                self.ms = answer
                return
            times.append(answer)
        if times:
            self.ms = round(statistics.median(times) * 1e3, 4)

    def _answer(self, seconds: float) -> Any:
        try:
            return self.line.recv() if self.line.poll(max(0.0, seconds)) else "took too long"
        except EOFError:
            return "its process ended"

    def close(self) -> None:
        """End its process."""
        self.line.close()
        self.process.terminate()
        self.process.join()


def measured(cases: list[tuple[str, str]], given: argparse.Namespace) -> list[Case]:
    """Prepare networks in ways concurrently, then time one after the other."""
    until = time.monotonic() + given.limit
    started = [Case.start(name, way, given) for name, way in cases]
    try:
        for case in started:
            case.prepare(until)
        for case in started:
            case.measure(given.rounds, given.seconds)
            print(case.name, case.way, f"first {case.first_s} s, {case.ms} ms", flush=True)
    finally:
        for case in started:
            case.close()
    return started


def timed(step: Callable[[], Any], seconds: float) -> float:
    """Seconds of one step, of as many as fill the time; the last one's result is synchronized."""
    calls, begin = 0, time.perf_counter()
    while True:
        result = step()
        calls += 1
        if time.perf_counter() - begin > seconds:
            finished(result)
            return (time.perf_counter() - begin) / calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda")
    )
    parser.add_argument(
        "--only", nargs="*", default=list(NETWORKS), help="names of NETWORKS, or torchvision/..., timm/..."
    )
    parser.add_argument("--batch", type=int, default=None, help="samples of a step")
    parser.add_argument("--infer", action="store_true", help="the forward pass in inference mode")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round of one way")
    parser.add_argument("--threads", type=int, default=None, help="of PyTorch's operators on a CPU")
    parser.add_argument("--ahead", type=int, default=1, help="processes that are prepared beside each other")
    parser.add_argument("--limit", type=float, default=240, help="seconds to prepare a group of processes in")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    cases = [(name, way) for name in given.only for way in given.ways]
    networks: dict[str, Any] = {}
    machine = torch.cuda.get_device_name() if given.device == "cuda" else processor()
    record = {
        "machine": machine,
        "threads": given.threads or torch.get_num_threads(),
        "ahead": given.ahead,
        "versions": versions(["lamina", "torch", "torchvision", "nvidia-cudnn-cu13"]),
        "networks": networks,
    }
    for first in range(0, len(cases), given.ahead):
        for case in measured(cases[first : first + given.ahead], given):
            batch = Network.named(case.name).samples(given.device, given.batch)
            found = networks.setdefault(case.name, {"batch": batch, "ms": {}, "first_s": {}})
            found["ms"][case.way] = case.ms
            if case.first_s is not None:
                found["first_s"][case.way] = round(case.first_s, 2)
        path = write(f"torch_{'inference' if given.infer else 'backend'}_{given.device}", record, given.out)
    print(path)


if __name__ == "__main__":
    main()
