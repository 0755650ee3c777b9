"""Floor 5: layers and networks. Names, arguments and state_dict keys are those of torch.nn."""

from lamina.files import WeightsError, load_safetensors, save_safetensors
from lamina.nn import init, random
from lamina.nn.activation import (
    ELU,
    GELU,
    ClippedReLU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
    Threshold,
)
from lamina.nn.alexnet import AlexNet, AlexNetImageNet
from lamina.nn.container import Identity, ModuleList, Sequential
from lamina.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from lamina.nn.dropout import Dropout
from lamina.nn.lenet import LeNet
from lamina.nn.linear import Linear
from lamina.nn.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss, SmoothL1Loss
from lamina.nn.module import Module, functional_call, substitute
from lamina.nn.parameter import Parameter
from lamina.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from lamina.nn.random import Generator, manual_seed
from lamina.nn.shape import Flatten
from lamina.nn.softmax import LogSoftmax, Softmax

__all__ = [
    "ELU",
    "GELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AlexNet",
    "AlexNetImageNet",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCEWithLogitsLoss",
    "ClippedReLU",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "Generator",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "L1Loss",
    "LeNet",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "ModuleList",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "Threshold",
    "WeightsError",
    "functional_call",
    "init",
    "load_safetensors",
    "manual_seed",
    "random",
    "save_safetensors",
    "substitute",
]
