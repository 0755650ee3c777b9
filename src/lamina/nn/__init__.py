"""Floor 5: layers and networks. Names, arguments and state_dict keys are those of torch.nn."""

from lamina._lazy import listing
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
from lamina.nn.attention import MultiheadAttention
from lamina.nn.container import Identity, ModuleDict, ModuleList, Sequential
from lamina.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from lamina.nn.dropout import Dropout
from lamina.nn.embedding import Embedding
from lamina.nn.linear import Linear
from lamina.nn.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss, SmoothL1Loss
from lamina.nn.models.alexnet import AlexNet, AlexNetImageNet
from lamina.nn.models.googlenet import GoogLeNet
from lamina.nn.models.lenet import LeNet
from lamina.nn.models.mobilenet import MobileNetV2, mobilenet_v2
from lamina.nn.models.overfeat import OverFeat
from lamina.nn.models.resnet import ResNet, resnet18, resnet34, resnet50, resnet101
from lamina.nn.models.vgg import VGG, vgg11, vgg16
from lamina.nn.module import Module, functional_call, substitute
from lamina.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
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
from lamina.nn.rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from lamina.nn.shape import Flatten
from lamina.nn.softmax import LogSoftmax, Softmax
from lamina.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "VGG",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AlexNet",
    "AlexNetImageNet",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "ClippedReLU",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "Generator",
    "GoogLeNet",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeNet",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MobileNetV2",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "OverFeat",
    "PReLU",
    "Parameter",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "ResNet",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "Threshold",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "WeightsError",
    "functional_call",
    "init",
    "load_safetensors",
    "manual_seed",
    "mobilenet_v2",
    "random",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "save_safetensors",
    "substitute",
    "vgg11",
    "vgg16",
]
__dir__ = listing(__all__)
