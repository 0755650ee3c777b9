"""What is measured: every workload of the comparison, most telling ones first."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """One thing to time.

    kind: "infer" (forward without gradients), "both" (forward and backward: gradients of the weights, and of the
        input where there is no image), "train" (forward, loss, backward, SGD with momentum and weight decay).
    network: a name of benchmarks.networks, or "conv", "lstm", "gru", "encoder".
    shape: of the input: (N, C, H, W), (T, N, features) for recurrent networks, (N, S, D) for the encoder.
    size: filters × kernel of the convolution; classes; hidden units and layers of a recurrent network.
    dtype: what is computed in; training keeps float32 master weights.
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
        return self.shape[1] if self.network in ("lstm", "gru") else self.shape[0]

    @property
    def is_image(self) -> bool:
        """Whether it is a network that classifies images."""
        return self.network not in ("conv", "lstm", "gru", "encoder")


def images(network: str, kind: str, batch: int, dtype: str = "bf16") -> Workload:
    """A network that classifies images, at the size that it was made for."""
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
)

SETS = {"gpu": GPU, "cpu": CPU, "tiny": TINY}
