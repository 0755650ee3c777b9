"""Layers in both Lamina and PyTorch, by the same name and with the same arguments."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    layer: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]

    @property
    def id(self) -> str:
        options = "".join(f"-{k}={v}" for k, v in self.kwargs.items())
        return f"{self.layer}{self.args}{options}".replace(" ", "")


def case(layer: str, *args: Any, shape: tuple[int, ...], **kwargs: Any) -> Case:
    return Case(layer, args, kwargs, shape)


CASES = [
    case("Conv1d", 3, 4, 3, shape=(2, 3, 9)),
    case("Conv1d", 4, 6, 5, shape=(1, 4, 12), stride=2, padding=2, groups=2),
    case("Conv2d", 3, 4, 3, shape=(2, 3, 8, 7)),
    case("Conv2d", 3, 8, (5, 3), shape=(2, 3, 9, 8), stride=(2, 1), padding=(2, 0), bias=False),
    case("Conv2d", 4, 8, 3, shape=(2, 4, 9, 9), padding="same", dilation=2, groups=4),
    case("Conv3d", 2, 3, 3, shape=(1, 2, 5, 6, 5), padding=1, stride=2),
    case("ConvTranspose1d", 3, 4, 4, shape=(2, 3, 6), stride=2, padding=1),
    case("ConvTranspose2d", 4, 6, 3, shape=(2, 4, 5, 4), stride=2, padding=1, output_padding=1, groups=2),
    case("ConvTranspose2d", 3, 2, 3, shape=(1, 3, 5, 5), dilation=2, bias=False),
    case("ConvTranspose3d", 2, 3, 2, shape=(1, 2, 3, 3, 2), stride=2),
    case("Linear", 7, 5, shape=(3, 7)),
    case("Linear", 7, 5, shape=(2, 3, 7), bias=False),
    case("MaxPool1d", 3, shape=(2, 3, 10), stride=2),
    case("MaxPool2d", 3, 2, shape=(2, 3, 9, 8)),
    case("MaxPool2d", (2, 3), shape=(1, 2, 7, 9), padding=1, ceil_mode=True),
    case("MaxPool2d", 2, 1, shape=(1, 2, 6, 6), dilation=2),
    case("MaxPool3d", 2, shape=(1, 2, 5, 4, 6)),
    case("AvgPool1d", 3, shape=(2, 3, 10), stride=2, padding=1),
    case("AvgPool2d", 3, 2, shape=(2, 3, 9, 8), padding=1, count_include_pad=False),
    case("AvgPool2d", 2, shape=(1, 2, 7, 7), ceil_mode=True),
    case("AvgPool3d", 2, shape=(1, 2, 5, 4, 6)),
    case("AdaptiveAvgPool1d", 4, shape=(2, 3, 10)),
    case("AdaptiveAvgPool2d", (6, 6), shape=(2, 3, 6, 6)),
    case("AdaptiveAvgPool2d", (2, 3), shape=(2, 3, 8, 9)),
    case("AdaptiveAvgPool2d", (6, 5), shape=(2, 3, 13, 3)),
    case("AdaptiveAvgPool3d", 2, shape=(1, 2, 5, 4, 3)),
    case("ReLU", shape=(3, 5)),
    case("ReLU6", shape=(3, 5)),
    case("Sigmoid", shape=(3, 5)),
    case("Tanh", shape=(3, 5)),
    case("SiLU", shape=(3, 5)),
    case("Hardsigmoid", shape=(3, 5)),
    case("Hardswish", shape=(3, 5)),
    case("LeakyReLU", 0.2, shape=(3, 5)),
    case("ELU", 1.5, shape=(3, 5)),
    case("GELU", shape=(3, 5)),
    case("GELU", shape=(3, 5), approximate="tanh"),
    case("Softplus", shape=(3, 5), beta=2.0),
    case("Threshold", 0.5, -1.0, shape=(3, 5)),
    case("Hardtanh", -0.5, 1.5, shape=(3, 5)),
    case("PReLU", shape=(3, 5)),
    case("PReLU", 4, shape=(2, 4, 3, 3)),
    case("Softmax", 1, shape=(3, 5)),
    case("LogSoftmax", 1, shape=(2, 3, 4, 4)),
    case("Flatten", shape=(2, 3, 4, 5)),
    case("Flatten", 0, 2, shape=(2, 3, 4, 5)),
    case("Identity", shape=(2, 3)),
]

#: The losses: inputs (3, 4), integer labels or targets like the input.
LOSSES = [
    ("CrossEntropyLoss", {}, "labels"),
    ("CrossEntropyLoss", {"label_smoothing": 0.1, "reduction": "sum"}, "labels"),
    ("CrossEntropyLoss", {"reduction": "none"}, "labels"),
    ("NLLLoss", {}, "labels"),
    ("MSELoss", {}, "like"),
    ("MSELoss", {"reduction": "sum"}, "like"),
    ("L1Loss", {"reduction": "none"}, "like"),
    ("SmoothL1Loss", {"beta": 0.5}, "like"),
    ("BCEWithLogitsLoss", {}, "shares"),
]
