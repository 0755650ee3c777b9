"""The workloads of the comparison, most informative ones first."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """One workload to time.

    kind: "infer" (forward without gradients), "both" (forward and backward: gradients of the weights, and of the
        input unless it is an image), "train" (forward, loss, backward, SGD with momentum and weight decay).
    network: a name of benchmarks.networks or benchmarks.torch_networks, or "conv", "lstm", "gru", "encoder".
    shape: of the input: (N, C, H, W), (N, C, T) for 1-d convolutions, (T, N, features) for recurrent networks and the
        Conformer block, (N, S, D) for the encoder, (N, S) token ids for GPT-2.
    size: filters × kernel of the convolution; hidden units and layers of a recurrent network; heads and layers of the
        encoder; else the classes (tokens), followed by the network's other sizes.
    dtype: of the computation; training keeps float32 master weights.
    """

    name: str
    kind: str
    network: str
    shape: Shape
    size: Shape
    dtype: str = "bf16"
    dropout: float = 0.0

    @property
    def batch(self) -> int:
        """Samples per run."""
        return self.shape[1] if self.network in ("lstm", "gru", "conformer") else self.shape[0]

    @property
    def is_image(self) -> bool:
        """Whether the input is images, (N, C, H, W)."""
        return len(self.shape) == 4

    @property
    def takes_ids(self) -> bool:
        """Whether the input is token ids below size[0]; the classes are then the last axis of the output."""
        return self.network == "gpt2"

    @property
    def labels(self) -> Shape | None:
        """The shape of the labels, below size[0]; None if there is no loss and the output's gradient is given."""
        if self.network in ("conv", "lstm", "gru", "encoder", "conformer"):
            return None
        if self.takes_ids:
            return self.shape
        return (self.batch, *self.shape[2:]) if self.network in ("unet", "dilated") else (self.batch,)


def images(network: str, kind: str, batch: int, dtype: str = "bf16") -> Workload:
    """A network that classifies images, at its original size."""
    grey = network == "alexnet"
    side = 231 if network == "overfeat" else 224
    shape = (batch, 1 if grey else 3, side, side)
    drops = {"alexnet": 0.5, "mobilenet_v2": 0.2}.get(network, 0.0) if kind == "train" else 0.0
    name = f"{network}-{kind}-{batch}"
    return Workload(name, kind, network, shape, (10 if grey else 1000,), dtype, drops)


def recurrent(
    network: str, kind: str, t: int, batch: int, hidden: int, layers: int, dtype: str = "fp16"
) -> Workload:
    """An LSTM or a GRU whose input is as wide as its state."""
    name = f"{network}-t{t}-{kind}"
    return Workload(name, kind, network, (t, batch, hidden), (hidden, layers), dtype)


CONV = Workload("conv-7x7", "infer", "conv", (64, 128, 112, 112), (128, 7))
ENCODER = Workload("encoder-both-32", "both", "encoder", (32, 512, 512), (8, 6))

#: On an NVIDIA GPU.
GPU = (
    images("alexnet", "train", 1024),
    images("resnet50", "train", 128),
    recurrent("lstm", "both", 50, 8, 512, 3),
    CONV,
    images("alexnet", "train", 128),
    images("resnet50", "infer", 128),
    images("resnet50", "infer", 1),
    recurrent("lstm", "both", 100, 64, 1024, 2),
    images("alexnet", "infer", 128),
    images("alexnet", "infer", 1),
    images("mobilenet_v2", "train", 128),
    ENCODER,
    images("resnet50", "train", 256),
    images("alexnet_owt", "both", 128),
    images("overfeat", "both", 128),
    images("vgg11", "both", 64),
    images("googlenet", "both", 128),
    recurrent("gru", "both", 20, 16, 128, 1),
    recurrent("lstm", "infer", 100, 64, 1024, 2),
    recurrent("lstm", "infer", 50, 8, 512, 3),
    recurrent("gru", "infer", 20, 16, 128, 1),
    images("resnet50", "infer", 8),
)


def usual(network: str, kind: str, batch: int) -> Workload:
    """A network of torchvision as built there (dropout, stochastic depth), on 3×224×224."""
    return Workload(f"{network}-{kind}-{batch}", kind, network, (batch, 3, 224, 224), (1000,))


#: On an NVIDIA GPU: networks for which no kernel and no rule was written. Inference is at batch 1.
MODERN = (
    usual("efficientnet_b0", "train", 128),
    usual("vit_s_16", "train", 128),
    usual("convnext_tiny", "train", 64),
    usual("regnet_y_3_2gf", "train", 64),
    usual("swin_t", "train", 64),
    usual("densenet121", "train", 64),
    Workload("unet-train-16", "train", "unet", (16, 3, 256, 256), (21, 64)),
    Workload("dilated-train-16", "train", "dilated", (16, 128, 8192), (256, 128, 20)),
    Workload("conformer-both-16", "both", "conformer", (400, 16, 256), (4, 1024, 31)),
    Workload("gpt2-train-8", "train", "gpt2", (8, 1024), (50257, 768, 12, 12)),
    usual("efficientnet_b0", "infer", 1),
    usual("vit_s_16", "infer", 1),
    usual("convnext_tiny", "infer", 1),
    usual("regnet_y_3_2gf", "infer", 1),
    usual("swin_t", "infer", 1),
    usual("densenet121", "infer", 1),
    Workload("unet-infer-1", "infer", "unet", (1, 3, 256, 256), (21, 64)),
    Workload("dilated-infer-1", "infer", "dilated", (1, 128, 8192), (256, 128, 20)),
    Workload("conformer-infer-1", "infer", "conformer", (400, 1, 256), (4, 1024, 31)),
)

#: On a CPU.
CPU = (
    images("alexnet", "train", 16, "fp32"),
    images("resnet50", "infer", 1, "fp32"),
    images("resnet50", "infer", 16, "fp32"),
    images("resnet18", "train", 16, "fp32"),
    recurrent("lstm", "both", 50, 8, 512, 3, "fp32"),
)

#: Small enough for a test of the harness itself.
TINY = (
    Workload("tiny-conv", "infer", "conv", (2, 8, 8, 8), (8, 3), "fp32"),
    Workload("tiny-train", "train", "resnet18", (2, 3, 32, 32), (10,), "fp32"),
    Workload("tiny-both", "both", "googlenet", (2, 3, 64, 64), (10,), "fp32"),
    Workload("tiny-infer", "infer", "mobilenet_v2", (2, 3, 32, 32), (10,), "fp32"),
    Workload("tiny-lstm", "both", "lstm", (3, 2, 8), (8, 2), "fp32"),
    Workload("tiny-gru", "infer", "gru", (3, 2, 8), (8, 1), "fp32"),
    Workload("tiny-encoder", "both", "encoder", (2, 16, 32), (4, 2), "fp32"),
    Workload("tiny-unet", "infer", "unet", (1, 3, 16, 16), (3, 4), "fp32"),
    Workload("tiny-dilated", "train", "dilated", (2, 4, 16), (5, 8, 3), "fp32"),
    Workload("tiny-conformer", "both", "conformer", (6, 2, 8), (2, 16, 3), "fp32"),
    Workload("tiny-gpt2", "train", "gpt2", (2, 6), (11, 8, 2, 2), "fp32"),
)

SETS = {"gpu": GPU, "modern": MODERN, "cpu": CPU, "tiny": TINY}
#: The sets for GPUs.
ON_GPU = ("gpu", "modern")
