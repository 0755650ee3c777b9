"""One network of each family in the package, with small image sizes; the sizes of all networks."""

#: Name of a builder -> pixels on a side.
SMALL = {
    "alexnet": 64, "convnext_tiny": 64, "densenet121": 64,
    "efficientnet_b0": 64, "googlenet": 64, "inception_v3": 96, "maxvit_t": 224, "mnasnet1_0": 64,
    "mobilenet_v2": 64, "mobilenet_v3_small": 64, "regnet_y_400mf": 64, "resnet18": 64, "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64, "vgg11_bn": 32, "vit_b_32": 64,
}  # fmt: skip
#: Those without a pooling for any size, with their published image sizes.
FIXED = {"AlexNet": 224, "LeNet": 28, "OverFeat": 231}
#: Numbers of parameters: torchvision's, and those of OverFeat's and GoogLeNet's layers without auxiliary classifiers.
PARAMETERS = {
    "AlexNet": 46_764_746, "GoogLeNet": 6_998_552, "LeNet": 61_706, "OverFeat": 145_920_872,
    "alexnet": 61_100_840, "convnext_base": 88_591_464, "convnext_large": 197_767_336,
    "convnext_small": 50_223_688, "convnext_tiny": 28_589_128, "densenet121": 7_978_856,
    "densenet161": 28_681_000, "densenet169": 14_149_480, "densenet201": 20_013_928,
    "efficientnet_b0": 5_288_548, "efficientnet_b1": 7_794_184, "efficientnet_b2": 9_109_994,
    "efficientnet_b3": 12_233_232, "efficientnet_b4": 19_341_616, "efficientnet_b5": 30_389_784,
    "efficientnet_b6": 43_040_704, "efficientnet_b7": 66_347_960, "efficientnet_v2_l": 118_515_272,
    "efficientnet_v2_m": 54_139_356, "efficientnet_v2_s": 21_458_488, "googlenet": 13_004_888,
    "inception_v3": 27_161_264, "maxvit_t": 30_919_624, "mnasnet0_5": 2_218_512, "mnasnet0_75": 3_170_208,
    "mnasnet1_0": 4_383_312, "mnasnet1_3": 6_282_256, "mobilenet_v2": 3_504_872,
    "mobilenet_v3_large": 5_483_032, "mobilenet_v3_small": 2_542_856, "regnet_x_16gf": 54_278_536,
    "regnet_x_1_6gf": 9_190_136, "regnet_x_32gf": 107_811_560, "regnet_x_3_2gf": 15_296_552,
    "regnet_x_400mf": 5_495_976, "regnet_x_800mf": 7_259_656, "regnet_x_8gf": 39_572_648,
    "regnet_y_128gf": 644_812_894, "regnet_y_16gf": 83_590_140, "regnet_y_1_6gf": 11_202_430,
    "regnet_y_32gf": 145_046_770, "regnet_y_3_2gf": 19_436_338, "regnet_y_400mf": 4_344_144,
    "regnet_y_800mf": 6_432_512, "regnet_y_8gf": 39_381_472, "resnet101": 44_549_160,
    "resnet152": 60_192_808, "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032,
    "resnext101_32x8d": 88_791_336, "resnext101_64x4d": 83_455_272, "resnext50_32x4d": 25_028_904,
    "shufflenet_v2_x0_5": 1_366_792, "shufflenet_v2_x1_0": 2_278_604, "shufflenet_v2_x1_5": 3_503_624,
    "shufflenet_v2_x2_0": 7_393_996, "squeezenet1_0": 1_248_424, "squeezenet1_1": 1_235_496,
    "swin_b": 87_768_224, "swin_s": 49_606_258, "swin_t": 28_288_354, "swin_v2_b": 87_930_848,
    "swin_v2_s": 49_737_442, "swin_v2_t": 28_351_570, "vgg11": 132_863_336, "vgg11_bn": 132_868_840,
    "vgg13": 133_047_848, "vgg13_bn": 133_053_736, "vgg16": 138_357_544, "vgg16_bn": 138_365_992,
    "vgg19": 143_667_240, "vgg19_bn": 143_678_248, "vit_b_16": 86_567_656, "vit_b_32": 88_224_232,
    "vit_h_14": 632_045_800, "vit_l_16": 304_326_632, "vit_l_32": 306_535_400,
    "wide_resnet101_2": 126_886_696, "wide_resnet50_2": 68_883_240,
}  # fmt: skip
