"""Floor 5: data as batches: digits, MNIST files, arrays, folders of images, tar shards;
augmentation, shuffling, workers, prefetching, sharding across ranks."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina.data.batches import Batches, Epochs, Prefetch, arrays, prefetch
from lamina.data.buckets import Buckets, Padded, boundaries, pad
from lamina.data.codec import decode_image, encode_image, normalize, resize
from lamina.data.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    ImageFolder,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from lamina.data.idx import DataError, mnist, read_idx
from lamina.data.image import resample

if TYPE_CHECKING:
    from lamina.data import transforms
    from lamina.data.collate import default_collate, default_convert
    from lamina.data.loader import DataLoader, WorkerInfo, get_worker_info
    from lamina.data.samplers import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        Sampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from lamina.data.scikit import digits
    from lamina.data.shard_stream import ShardStream
    from lamina.data.shards import TarShards, write_shards
    from lamina.data.workers import WorkerError

__all__ = [
    "BatchSampler",
    "Batches",
    "Buckets",
    "ChainDataset",
    "ConcatDataset",
    "DataError",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "Epochs",
    "ImageFolder",
    "IterableDataset",
    "Padded",
    "Prefetch",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "ShardStream",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TarShards",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerError",
    "WorkerInfo",
    "arrays",
    "boundaries",
    "decode_image",
    "default_collate",
    "default_convert",
    "digits",
    "encode_image",
    "get_worker_info",
    "mnist",
    "normalize",
    "pad",
    "prefetch",
    "random_split",
    "read_idx",
    "resample",
    "resize",
    "transforms",
    "write_shards",
]
__dir__ = listing(__all__)

__getattr__ = lazy(
    __name__,
    {
        "digits": "lamina.data.scikit",
        "DataLoader": "lamina.data.loader",
        "WorkerInfo": "lamina.data.loader",
        "default_collate": "lamina.data.collate",
        "default_convert": "lamina.data.collate",
        "get_worker_info": "lamina.data.loader",
        "ShardStream": "lamina.data.shard_stream",
        "TarShards": "lamina.data.shards",
        "BatchSampler": "lamina.data.samplers",
        "DistributedSampler": "lamina.data.samplers",
        "RandomSampler": "lamina.data.samplers",
        "Sampler": "lamina.data.samplers",
        "SequentialSampler": "lamina.data.samplers",
        "SubsetRandomSampler": "lamina.data.samplers",
        "WeightedRandomSampler": "lamina.data.samplers",
        "WorkerError": "lamina.data.workers",
        "transforms": "lamina.data.transforms",
        "write_shards": "lamina.data.shards",
    },
)
