"""One network of each family that the package has, with images that are small for it."""

#: Name of a builder -> pixels on a side.
SMALL = {
    "alexnet": 64, "convnext_tiny": 64, "densenet121": 64,
    "efficientnet_b0": 64, "googlenet": 64, "inception_v3": 96, "maxvit_t": 224, "mnasnet1_0": 64,
    "mobilenet_v2": 64, "mobilenet_v3_small": 64, "regnet_y_400mf": 64, "resnet18": 64, "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64, "vgg11_bn": 32, "vit_b_32": 64,
}  # fmt: skip
#: Those that have no pool over any size, with the images that they were published for.
FIXED = {"AlexNet": 224, "LeNet": 28, "OverFeat": 231}
