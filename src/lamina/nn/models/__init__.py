"""Networks by name: `resnet50(num_classes=10)`, or `get_model("resnet50", num_classes=10)`.

Names, arguments and state_dict keys are torchvision's if it has the network, so that published weights load by name;
docs/networks.md and docs/networks-for-tasks.md list them.
"""

from lamina._lazy import listing
from lamina.nn.models._alexnet import (
    AlexNet,
    AlexNetImageNet,
    alexnet,
)
from lamina.nn.models._googlenet import (
    GoogLeNet,
    googlenet,
)
from lamina.nn.models.bert import (
    BertForMaskedLM,
    BertModel,
)
from lamina.nn.models.conformer import (
    Conformer,
)
from lamina.nn.models.convnext import (
    ConvNeXt,
    convnext_base,
    convnext_large,
    convnext_small,
    convnext_tiny,
)
from lamina.nn.models.crnn import (
    CRNN,
)
from lamina.nn.models.deepspeech import (
    DeepSpeech,
)
from lamina.nn.models.densenet import (
    DenseNet,
    densenet121,
    densenet161,
    densenet169,
    densenet201,
)
from lamina.nn.models.efficientnet import (
    EfficientNet,
    efficientnet_b0,
    efficientnet_b1,
    efficientnet_b2,
    efficientnet_b3,
    efficientnet_b4,
    efficientnet_b5,
    efficientnet_b6,
    efficientnet_b7,
    efficientnet_v2_l,
    efficientnet_v2_m,
    efficientnet_v2_s,
)
from lamina.nn.models.gpt2 import (
    GPT2LMHeadModel,
    GPT2Model,
)
from lamina.nn.models.inception import (
    Inception3,
    inception_v3,
)
from lamina.nn.models.lenet import (
    LeNet,
)
from lamina.nn.models.maxvit import (
    MaxVit,
    maxvit_t,
)
from lamina.nn.models.mnasnet import (
    MNASNet,
    mnasnet0_5,
    mnasnet0_75,
    mnasnet1_0,
    mnasnet1_3,
)
from lamina.nn.models.mobilenet import (
    MobileNetV2,
    MobileNetV3,
    mobilenet_v2,
    mobilenet_v3_large,
    mobilenet_v3_small,
)
from lamina.nn.models.overfeat import (
    OverFeat,
)
from lamina.nn.models.registry import Builder, builders, get_model, list_models
from lamina.nn.models.regnet import (
    RegNet,
    regnet_x_1_6gf,
    regnet_x_3_2gf,
    regnet_x_8gf,
    regnet_x_16gf,
    regnet_x_32gf,
    regnet_x_400mf,
    regnet_x_800mf,
    regnet_y_1_6gf,
    regnet_y_3_2gf,
    regnet_y_8gf,
    regnet_y_16gf,
    regnet_y_32gf,
    regnet_y_128gf,
    regnet_y_400mf,
    regnet_y_800mf,
)
from lamina.nn.models.resnet import (
    ResNet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnext50_32x4d,
    resnext101_32x8d,
    resnext101_64x4d,
    wide_resnet50_2,
    wide_resnet101_2,
)
from lamina.nn.models.retinanet import (
    RetinaNet,
    padded_objects,
    retinanet_resnet50_fpn,
)
from lamina.nn.models.segmentation import (
    FCN,
    LRASPP,
    DeepLabV3,
    deeplabv3_mobilenet_v3_large,
    deeplabv3_resnet50,
    deeplabv3_resnet101,
    fcn_resnet50,
    fcn_resnet101,
    lraspp_mobilenet_v3_large,
    segmentation_loss,
)
from lamina.nn.models.seq2seq import (
    Seq2Seq,
)
from lamina.nn.models.shufflenet import (
    ShuffleNetV2,
    shufflenet_v2_x0_5,
    shufflenet_v2_x1_0,
    shufflenet_v2_x1_5,
    shufflenet_v2_x2_0,
)
from lamina.nn.models.squeezenet import (
    SqueezeNet,
    squeezenet1_0,
    squeezenet1_1,
)
from lamina.nn.models.swin import (
    SwinTransformer,
    swin_b,
    swin_s,
    swin_t,
    swin_v2_b,
    swin_v2_s,
    swin_v2_t,
)
from lamina.nn.models.tokens import (
    next_token_loss,
    token_loss,
)
from lamina.nn.models.unet import (
    UNet,
)
from lamina.nn.models.vgg import (
    VGG,
    vgg11,
    vgg11_bn,
    vgg13,
    vgg13_bn,
    vgg16,
    vgg16_bn,
    vgg19,
    vgg19_bn,
)
from lamina.nn.models.vit import (
    VisionTransformer,
    vit_b_16,
    vit_b_32,
    vit_h_14,
    vit_l_16,
    vit_l_32,
)
from lamina.nn.models.word_language import (
    RNNModel,
)

__all__ = [
    "CRNN",
    "FCN",
    "LRASPP",
    "VGG",
    "AlexNet",
    "AlexNetImageNet",
    "BertForMaskedLM",
    "BertModel",
    "Builder",
    "Conformer",
    "ConvNeXt",
    "DeepLabV3",
    "DeepSpeech",
    "DenseNet",
    "EfficientNet",
    "GPT2LMHeadModel",
    "GPT2Model",
    "GoogLeNet",
    "Inception3",
    "LeNet",
    "MNASNet",
    "MaxVit",
    "MobileNetV2",
    "MobileNetV3",
    "OverFeat",
    "RNNModel",
    "RegNet",
    "ResNet",
    "RetinaNet",
    "Seq2Seq",
    "ShuffleNetV2",
    "SqueezeNet",
    "SwinTransformer",
    "UNet",
    "VisionTransformer",
    "alexnet",
    "builders",
    "convnext_base",
    "convnext_large",
    "convnext_small",
    "convnext_tiny",
    "deeplabv3_mobilenet_v3_large",
    "deeplabv3_resnet50",
    "deeplabv3_resnet101",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "efficientnet_b0",
    "efficientnet_b1",
    "efficientnet_b2",
    "efficientnet_b3",
    "efficientnet_b4",
    "efficientnet_b5",
    "efficientnet_b6",
    "efficientnet_b7",
    "efficientnet_v2_l",
    "efficientnet_v2_m",
    "efficientnet_v2_s",
    "fcn_resnet50",
    "fcn_resnet101",
    "get_model",
    "googlenet",
    "inception_v3",
    "list_models",
    "lraspp_mobilenet_v3_large",
    "maxvit_t",
    "mnasnet0_5",
    "mnasnet0_75",
    "mnasnet1_0",
    "mnasnet1_3",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "next_token_loss",
    "padded_objects",
    "regnet_x_1_6gf",
    "regnet_x_3_2gf",
    "regnet_x_8gf",
    "regnet_x_16gf",
    "regnet_x_32gf",
    "regnet_x_400mf",
    "regnet_x_800mf",
    "regnet_y_1_6gf",
    "regnet_y_3_2gf",
    "regnet_y_8gf",
    "regnet_y_16gf",
    "regnet_y_32gf",
    "regnet_y_128gf",
    "regnet_y_400mf",
    "regnet_y_800mf",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "retinanet_resnet50_fpn",
    "segmentation_loss",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
    "squeezenet1_0",
    "squeezenet1_1",
    "swin_b",
    "swin_s",
    "swin_t",
    "swin_v2_b",
    "swin_v2_s",
    "swin_v2_t",
    "token_loss",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
    "vit_b_16",
    "vit_b_32",
    "vit_h_14",
    "vit_l_16",
    "vit_l_32",
    "wide_resnet50_2",
    "wide_resnet101_2",
]
__dir__ = listing(__all__)
