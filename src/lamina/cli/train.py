"""Train a network on real data; print its accuracy on validation data per epoch and on test data at the end.

    lamina train alexnet --data digits
    lamina train alexnet --data digits --device cuda:0 --precision bf16 --batch-size 128 --out run.safetensors
    lamina train alexnet --data path/to/mnist --resume run.safetensors --out run.safetensors

On a terminal it draws a progress bar with loss, accuracy, samples per second and the time left.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from lamina import data, ops
from lamina.cli.arguments import Gone, natural, positive
from lamina.cli.folders import Sight, classes_of, image_batches
from lamina.cli.networks import NETWORKS, batches, command_name, is_image_folder
from lamina.data import Batches
from lamina.files import save_safetensors
from lamina.nn import Module, manual_seed
from lamina.optim import SGD, Adam, Optimizer, schedule
from lamina.runtime import check_writable, device, write_atomically
from lamina.spec import PRECISIONS, policy
from lamina.spec.policies import ALGORITHMS
from lamina.train import History, Position, Scores, Step, evaluate, load_checkpoint, train_step
from lamina.train.callbacks import Callback, CSVLogger, EarlyStopping, TensorBoard
from lamina.train.loop import fit
from lamina.train.metrics import TopK

#: The fraction of all steps over which the learning rate rises; it then falls along half a cosine.
WARM_UP = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "network",
        choices=NETWORKS,
        type=command_name,
        metavar="NETWORK",
        help="what to train: its name, or FILE.py:NAME",
    )
    add(
        "--data",
        default="digits",
        help="'digits' (scikit-learn's), a folder with MNIST's four files, or one with a folder of images a class",
    )
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add("--precision", default="fp32", choices=PRECISIONS, help="what to compute in (default: fp32)")
    add("--epochs", type=positive, default=8, help="passes over the data (default: 8)")
    add("--batch", action=Gone, const="--batch-size")
    add("--batch-size", type=positive, default=16, help="samples per step (default: 16)")
    add("--optimizer", default="sgd", choices=("sgd", "adam"), help="sgd has momentum 0.9 (default: sgd)")
    add("--lr", type=_rate, help="highest learning rate (default: what suits the network)")
    add("--weight-decay", type=_rate, default=5e-4, help="(default: 0.0005)")
    add("--shift", type=_rate, default=0.7, help="random shift of training images, in pixels of the source")
    add("--no-augment", action="store_true", help="of folders of images: no random parts and flips")
    add("--mixup", type=_rate, metavar="ALPHA", help="of folders of images: mix them in pairs (0.2 is usual)")
    add(
        "--workers", type=natural, default=0, help="of folders of images: threads that read them (default: 0)"
    )
    add("--seed", type=int, default=0, help="of initial values, order, shifts and dropout (default: 0)")
    add("--size", type=positive, help="scale images to this many pixels on a side (default: the network's)")
    add("--algorithm", choices=ALGORITHMS, help="how kernels are chosen; fastest times them first")
    add("--memory-limit", metavar="SIZE", help="compute again what does not fit, such as '8 GiB'")
    add("--out", type=Path, metavar="FILE", help="write a checkpoint after each epoch and after Ctrl-C")
    add("--weights", type=Path, metavar="FILE", help="write the trained weights alone, for other programs")
    add("--resume", type=Path, metavar="FILE", help="go on from a checkpoint, exactly where it was written")
    add(
        "--override", nargs="+", default=(), metavar="NAME", help="with --resume: what may differ, such as lr"
    )
    add("--limit-steps", action=Gone, const="--max-steps")
    add("--max-steps", type=positive, metavar="N", help="stop after N steps")
    add(
        "--checkpoint-every", type=positive, metavar="N", help="with --out: write it after every N steps, too"
    )
    add("--csv", type=Path, metavar="FILE", help="write the figures of each epoch as a line")
    add("--tensorboard", type=Path, metavar="FOLDER", help="write losses and figures for TensorBoard")
    add("--patience", type=positive, metavar="N", help="stop after N epochs without a better validation loss")
    add("--top5", action="store_true", help="also count labels among the five largest outputs")
    add("--losses", type=Path, metavar="FILE", help="write the loss of every step as JSON")
    add("--no-check-finite", action="store_true", help="go on when the loss is infinite or not a number")
    add("--no-bar", action="store_true", help="one line per epoch, no progress bar")


def run(options: argparse.Namespace) -> None:
    """Train as the options say."""
    if options.override and not options.resume:
        raise ValueError("--override: says what may differ from a checkpoint; name that by --resume")
    if options.checkpoint_every and not options.out:
        raise ValueError("--checkpoint-every: name the file to write by --out")
    console = Console(highlight=False)
    where = device(options.device)
    for file in (options.out, options.weights, options.losses):
        if file is not None:
            check_writable(file)  # now, not after hours of training
    manual_seed(options.seed)
    splits = {name: _batches(options, name) for name in ("train", "validation", "test")}
    net = _network(options, splits["train"])
    with policy(algorithm=options.algorithm) if options.algorithm else nullcontext():
        step = train_step(
            net,
            partial(ops.cross_entropy, ignore_index=None),  # the labels are classes
            _optimizer(options, len(splits["train"])),
            device=where,
            precision=options.precision,
            memory_limit=options.memory_limit,
        )
        start = _start(options, step)
        console.print(_headline(options, step, splits), soft_wrap=True)
        history = _fit(options, step, start, splits, console)
        test = evaluate(net, splits["test"], device=where, precision=options.precision)
    _finish(options, net, history, test, console)


def _fit(
    options: argparse.Namespace, step: Step, start: Position, splits: Mapping[str, Batches], console: Console
) -> History:
    """The run; if interrupted, it tells how to resume."""
    callbacks: list[Callback] = [CSVLogger(options.csv)] if options.csv else []
    callbacks += [TensorBoard(options.tensorboard)] if options.tensorboard else []
    callbacks += [EarlyStopping(patience=options.patience)] if options.patience else []
    try:
        return fit(
            step,
            data.prefetch(splits["train"]),
            options.epochs,
            validation=data.prefetch(splits["validation"]),
            metrics=[TopK(5)] if options.top5 else (),
            start=start,
            checkpoint=options.out,
            checkpoint_every=options.checkpoint_every,
            callbacks=callbacks,
            max_steps=options.max_steps,
            check_finite=not options.no_check_finite,
            override=options.override,
            console=console,
            progress=False if options.no_bar else None,
        )
    except KeyboardInterrupt as error:
        if options.out is None or not options.out.exists():
            raise
        place = str(error).partition(";")[0] or "interrupted"
        raise KeyboardInterrupt(f"{place}; go on with: {_again(options)}") from None


def _again(options: argparse.Namespace) -> str:
    """The command that resumes from the checkpoint: this one, with --resume."""
    words = list(options.words)
    if "--resume" in words:
        place = words.index("--resume")
        del words[place : place + 2]
    kept = [w for w in words if not w.startswith("--resume=")]
    return shlex.join(["lamina", *kept, "--resume", str(options.out)])


def _batches(options: argparse.Namespace, split: str) -> Batches:
    size = options.size or NETWORKS[options.network].size
    if is_image_folder(options.data):
        return image_batches(
            options.data,
            split,
            options.batch_size,
            _sight(options),
            seed=options.seed,
            augment=not options.no_augment,
            workers=options.workers,
            mixup=options.mixup,
        )
    return batches(options.data, split, options.batch_size, size, options.seed, options.shift)


def _sight(options: argparse.Namespace) -> Sight:
    """The network's preprocessing for the images of a folder."""
    size = options.size or NETWORKS[options.network].size
    return Sight(options.network, classes_of(options.data), size=size)


def _network(options: argparse.Namespace, train_data: Batches) -> Module:
    _, channels, size, _ = next(train_data.epoch(0))[0].shape
    return NETWORKS[options.network](channels, train_data.num_classes or 10, size)


def _optimizer(options: argparse.Namespace, steps_per_epoch: int) -> Optimizer:
    """The optimizer, with a learning rate that warms up over the first steps and falls to zero at the last."""
    total = options.epochs * steps_per_epoch
    climb = int(WARM_UP * total)
    peak = NETWORKS[options.network].rates[options.optimizer] if options.lr is None else options.lr
    rate = schedule.warm_up(schedule.cosine(peak, total - climb), climb)
    if options.optimizer == "adam":
        return Adam(rate, weight_decay=options.weight_decay)
    return SGD(rate, momentum=0.9, weight_decay=options.weight_decay)


def _start(options: argparse.Namespace, step: Step) -> Position:
    """The starting position. Raises ValueError when the checkpoint has all epochs already."""
    if not options.resume:
        return Position()
    start = load_checkpoint(options.resume, step, override=options.override)
    if start.epoch >= options.epochs:
        raise ValueError(
            f"--resume: {options.resume} has {start.epoch} epochs of {options.epochs}; for more take a larger "
            "--epochs and --override epochs lr"
        )
    return start


def _headline(options: argparse.Namespace, step: Step, splits: Mapping[str, Batches]) -> str:
    """A summary of the run ahead, in two lines."""
    count = sum(p.numel() for p in step.net.parameters())
    where = step.device
    name = f"{where.name} ({where})" if where.kind == "cuda" else f"the CPU ({where.name})"
    sizes = ", ".join(f"{split.count} {name}" for name, split in splits.items())
    return (
        f"{options.network}: {count / 1e6:.1f} million parameters, {options.precision} on {name}\n"
        f"{options.data}: {sizes} samples; "
        f"{options.epochs} epochs of {len(splits['train'])} steps of {options.batch_size}"
    )


def _finish(
    options: argparse.Namespace, net: Module, history: History, test: Scores, console: Console
) -> None:
    """Write the requested files, and print the accuracy on the test split."""
    validation = history.epochs[-1].validation
    if options.weights:
        texts = _sight(options).header() if is_image_folder(options.data) else {}
        save_safetensors(net, options.weights, texts)
    if options.losses:
        accuracies = {"validation": validation.accuracy if validation else None, "test": test.accuracy}
        facts = {"losses": history.losses, **accuracies}
        write_atomically(options.losses, [json.dumps(facts).encode()])
    for file in (options.out, options.weights, options.losses):
        if file:
            console.print(f"wrote {file}", soft_wrap=True)
    console.print(f"test accuracy: {test}", soft_wrap=True)


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return number
