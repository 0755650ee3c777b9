"""Networks of all kinds to export: those of lamina.nn, of the programs of tests, and layers in small nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lamina import nn
from lamina.nn.models.bert import BertModel
from lamina.nn.models.conformer import Conformer
from lamina.nn.models.crnn import CRNN
from lamina.nn.models.deepspeech import DeepSpeech
from lamina.nn.models.gpt2 import GPT2LMHeadModel
from lamina.nn.models.registry import builders
from lamina.nn.models.segmentation import deeplabv3_resnet50
from lamina.nn.models.seq2seq import Seq2Seq
from lamina.nn.models.unet import UNet
from lamina.nn.models.word_language import RNNModel
from lamina.spec import Spec, float32, int64
from tests.helpers.nn.families import FIXED, SMALL
from tests.helpers.programs import LAMINA, Program
from tests.programs import test_images, test_sequences


@dataclass(frozen=True)
class Case:
    """A network, its example inputs, and its dynamic axes."""

    make: Callable[[], Any]
    examples: tuple[Any, ...]
    dynamic: str | Mapping[str, Mapping[int, str]] | None = None

    def made(self) -> tuple[Any, tuple[Any, ...]]:
        """The network, with norm statistics from varying numbers, and the examples."""
        net, rng = self.make(), np.random.default_rng(1)
        for name, x in dict(net.named_buffers()).items():
            if name.endswith("running_var"):
                x.copy_(rng.uniform(0.5, 1.5, x.shape).astype(np.float32))
            elif name.endswith("running_mean"):
                x.copy_((0.1 * rng.standard_normal(x.shape)).astype(np.float32))
        return net, self.examples


def images(make: Callable[..., Any], size: int, *arguments: Any, channels: int = 3, batch: int = 2) -> Case:
    """A network of images, with a dynamic batch axis."""
    return Case(partial(make, *arguments), (Spec((batch, channels, size, size), float32),), "batch")


def sequences(make: Callable[..., Any], *arguments: Any, **named: Any) -> Case:
    """A recurrent layer [T, B, 4] of any number of steps and sequences."""
    free = {"input_0": {0: "time", 1: "batch"}}
    return Case(partial(make, *arguments, **named), (Spec((5, 2, 4), float32),), free)


def _of_program(program: Program) -> Case:
    inputs = program.batches[0][0]
    return Case(partial(program.make, LAMINA), inputs if isinstance(inputs, tuple) else (inputs,))


def _language_model() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(30, 16), nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32), 2)
    )


class _Both(nn.Module):
    """An encoder and a decoder with causal masks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)

    def forward(self, source: Any, target: Any) -> Any:
        steps = target.shape[1]
        return self.net(source, target, tgt_mask=np.triu(np.ones((steps, steps), bool), 1))


class _TokensAndState(nn.Module):
    """One step of a language model that carries its state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(20, 8), nn.LSTM(8, 12, 2), nn.Linear(12, 20)

    def forward(self, token: Any, state: Any) -> Any:
        y, after = self.cell(self.embed(token).unsqueeze(0), state)
        return self.out(y.squeeze(0)), after


def tokens(*shape: int) -> Any:
    """Words of a vocabulary of 20."""
    return np.random.default_rng(0).integers(1, 20, shape)


def _of_builder(name: str, size: int) -> Case:
    """A network of images for ten classes."""
    builder = builders()[name]
    make = partial(builder, builder.channels, 10, size)
    return Case(make, (Spec((2, builder.channels, size, size), float32),), "batch")


_FREE = {"input_0": {0: "batch", 1: "time"}}
_STATE = (Spec((2, 3, 12), float32), Spec((2, 3, 12), float32))

NETWORKS = {
    **{name: _of_builder(name, size) for name, size in (SMALL | FIXED).items()},
    "bert": Case(partial(BertModel, 50, 32, 2, 4, 64), (tokens(2, 7),), _FREE),
    "gpt2": Case(
        partial(GPT2LMHeadModel, vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32),
        (tokens(2, 7),),
        _FREE,
    ),
    "crnn": Case(partial(CRNN, 32, 1, 11, 16), (Spec((2, 1, 32, 64), float32),), "batch"),
    "conformer": Case(partial(Conformer, 16, 4, 32, 2, 7), (Spec((2, 12, 16), float32), np.array([12, 9]))),
    "deepspeech": Case(partial(DeepSpeech, 16, 32, 10), (Spec((2, 1, 9, 16), float32),), "batch"),
    "seq2seq": Case(partial(Seq2Seq, 20, 20, 16), (tokens(2, 6), tokens(2, 5)), "batch"),
    "word_language": Case(partial(RNNModel, "LSTM", 30, 16, 16, 2), (tokens(7, 2),)),
    "unet": Case(
        partial(UNet, 3, 2, width=8), (Spec((2, 3, 48, 64), float32),), {"input_0": {0: "batch", 2: "h", 3: "w"}}
    ),
    "deeplabv3": images(deeplabv3_resnet50, 65, 4),
    "googlenet_without_norms": images(nn.GoogLeNet, 64, 10),
    "resnet50": images(nn.resnet50, 64, 10),
    **{f"program_{n}": _of_program(p) for n, p in (test_images.PROGRAMS | test_sequences.PROGRAMS).items()},
    "lstm": sequences(nn.LSTM, 4, 6, 2, bidirectional=True),
    "lstm_projected": Case(partial(nn.LSTM, 4, 6, 2, proj_size=3, bidirectional=True), (Spec((5, 2, 4), float32),)),
    "gru": sequences(nn.GRU, 4, 6, 2, bidirectional=True),
    "rnn_tanh": sequences(nn.RNN, 4, 6, 2),
    "rnn_relu": sequences(nn.RNN, 4, 6, nonlinearity="relu", bidirectional=True),
    "lstm_step": Case(_TokensAndState, (Spec((3,), int64), _STATE)),
    "transformer_encoder": Case(_language_model, (Spec((7, 2), int64),), {"input_0": {1: "batch"}}),
    "transformer": Case(_Both, (Spec((2, 7, 16), float32), Spec((2, 5, 16), float32)), "batch"),
    "attention": Case(
        lambda: nn.TransformerDecoderLayer(16, 2, 32, batch_first=True),
        (Spec((2, 5, 16), float32), Spec((2, 7, 16), float32)),
        {"input_0": {0: "batch", 1: "target"}, "input_1": {0: "batch", 1: "source"}},
    ),
    "autoencoder": images(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.PReLU(),
            nn.ConvTranspose2d(8, 3, 3, 2, 1, 1),
        ),
        15,
    ),
    "volumes": Case(
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.AvgPool3d(2), nn.ConvTranspose3d(4, 2, 2, 2)
        ),
        (Spec((2, 2, 4, 6, 8), float32),),
        "batch",
    ),
    "signal": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 8, 5, groups=2), nn.LeakyReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(32, 3)
        ),
        (Spec((2, 2, 30), float32),),
        "batch",
    ),
}  # fmt: skip

#: Exported by the quick suite; the rest is slow.
QUICK = (
    "LeNet", "resnet18", "program_unet", "program_transformer", "program_vit", "lstm",
    "lstm_projected", "gru", "rnn_tanh", "rnn_relu", "lstm_step", "transformer_encoder", "transformer", "attention",
    "volumes", "signal", "bert", "gpt2", "conformer", "deepspeech", "seq2seq", "word_language", "unet",
)  # fmt: skip
