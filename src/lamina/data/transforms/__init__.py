"""Augmentation: transforms of single images, and mixing of images within a batch. Names and defaults are
torchvision's.

An image is an array (H, W, C) with one or three channels, uint8 or float32 from 0 to 255. A transform is called with
it and a generator, on which alone the random draws depend, so that a run repeats bit-exactly, whichever worker makes
its batches. `ToTensor` makes a tensor of it, float32 (C, H, W) from 0 to 1, which `Normalize` and `RandomErasing`
take; `Normalize` makes a float32 array (C, H, W) of an image of uint8. `MixUp` and `CutMix` take batches
(`DataLoader(batch_transform=)`). Rotations, affine and perspective transforms, and the policies that use them, are
computed by Pillow (`pip install 'lamina[image]'`). Transforms can be pickled for worker processes, if the functions
that they were given can.
"""

from lamina._lazy import lazy, listing
from lamina.data.transforms.automatic import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from lamina.data.transforms.base import InterpolationMode
from lamina.data.transforms.choosing import Compose, Lambda, RandomApply, RandomChoice, RandomOrder
from lamina.data.transforms.colour import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from lamina.data.transforms.geometry import (
    RandomAffine,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from lamina.data.transforms.mixing import CutMix, MixUp
from lamina.data.transforms.policies import AutoAugmentPolicy
from lamina.data.transforms.sizes import (
    CenterCrop,
    FiveCrop,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    TenCrop,
)
from lamina.data.transforms.tensors import Normalize, RandomErasing, ToTensor

__all__ = [
    "AugMix",
    "AutoAugment",
    "AutoAugmentPolicy",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "FiveCrop",
    "GaussianBlur",
    "Grayscale",
    "InterpolationMode",
    "Lambda",
    "MixUp",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "ToTensor",
    "TrivialAugmentWide",
]
__dir__ = listing(__all__)
__getattr__ = lazy(
    __name__,
    {},
    instead={
        "Border": "it is Pad now",
        **dict.fromkeys(
            ("ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage"),
            "images are arrays (H, W, C), and ToTensor makes float32 (C, H, W) from 0 to 1 of them",
        ),
    },
)
