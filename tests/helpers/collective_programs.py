"""Tensor operations of ranks in tests; each function returns the faults."""

from collections.abc import Callable
from typing import Any

import numpy as np

import lamina as lm
from lamina import distributed, ops
from lamina.distributed import Group
from lamina.ops.core import bind
from lamina.ops.primitives.collective import AllGatherEach, ReduceScatterEach


def own(rank: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Small whole numbers, so that sums do not depend on the order."""
    return np.random.default_rng(rank).integers(-8, 8, shape).astype(np.float32)


def cases(n: int, me: int) -> dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Callable[[Any], Any]]]:
    """By name: the call, the shape of a rank's input, and the result for all ranks' inputs [ranks, *shape]."""
    d = distributed
    group = Group(*range(n))
    return {
        "reduce_scatter_each": (
            lambda x: bind(ReduceScatterEach(group, "mean", 20), x, x * 2.0)[1],
            (n, 5),
            lambda xs: 2 * xs.mean(0)[me],
        ),
        "all_gather_each": (
            lambda x: bind(AllGatherEach(group, 20), x, x * 2.0)[1],
            (2, 3),
            lambda xs: 2 * xs,
        ),
        "sum": (lambda x: d.all_reduce(x), (2, 3), lambda xs: xs.sum(0)),
        "mean": (lambda x: d.all_reduce(x, "mean"), (4,), lambda xs: xs.mean(0)),
        "max": (lambda x: d.all_reduce(x, "max"), (3, 2), lambda xs: xs.max(0)),
        "all_gather": (lambda x: d.all_gather(x), (2, 3), lambda xs: xs),
        "reduce_scatter": (lambda x: d.reduce_scatter(x), (n, 3), lambda xs: xs.sum(0)[me]),
        "reduce_scatter mean": (lambda x: d.reduce_scatter(x, "mean"), (n, 3), lambda xs: xs.mean(0)[me]),
        "broadcast": (lambda x: d.broadcast(x, n - 1), (5,), lambda xs: xs[n - 1]),
        "all_to_all": (lambda x: d.all_to_all(x), (n, 2), lambda xs: xs[:, me]),
        "ring": (lambda x: d.send_receive(x, (me + 1) % n, (me - 1) % n), (3,), lambda xs: xs[(me - 1) % n]),
        "each": (
            lambda x: d.all_reduce_each([x, x * 2.0], "sum", bucket_bytes=20)[1],
            (6,),
            lambda xs: 2 * xs.sum(0),
        ),
        "each by name": (
            lambda x: d.all_reduce_each({"a": x, "b": x * 2.0})["b"],
            (6,),
            lambda xs: 2 * xs.mean(0),
        ),
    }


def loss_of(function: Callable[[Any], Any], rank: int, device: str) -> Callable[[Any], Any]:
    """A rank's part of a loss that is the sum over all ranks, with weights that differ between ranks."""

    def loss(x: Any) -> Any:
        y = function(x)
        return ops.sum(y * lm.tensor(own(100 + rank, tuple(y.shape)), device=device))

    return loss


def check(device: str = "cpu") -> list[str]:
    """Eager and compiled values, and gradients against differences of the sum of all ranks' losses."""
    n, me = distributed.world_size(), distributed.rank()
    wrong: list[str] = []

    def compare(what: str, got: Any, wanted: Any, tolerance: float = 0.0) -> None:
        if not np.allclose(got, wanted, rtol=tolerance, atol=tolerance):
            wrong.append(f"rank {me}, {what}: {got} is not {wanted}")

    for name, (function, shape, expected) in cases(n, me).items():
        xs = np.stack([own(r, shape) for r in range(n)])
        x = lm.tensor(xs[me], device=device)
        compare(name, function(x).numpy(), expected(xs))
        compare(f"{name} compiled", lm.jit(function)(x).numpy(), expected(xs))
        loss = loss_of(function, me, device)
        found = lm.jit(lm.grad(loss))(x).numpy()
        # The derivative of the sum of all ranks' losses along a direction of all ranks' inputs.
        along = np.stack([own(200 + r, shape) for r in range(n)])
        step = 2.0**-6
        ends = [
            float(loss(lm.tensor(xs[me] + sign * step * along[me], device=device)).item()) for sign in (1, -1)
        ]
        difference = sum(a - b for a, b in distributed.all_gather_object(ends)) / (2 * step)
        derivative = sum(distributed.all_gather_object(float((found * along[me]).sum())))
        compare(f"{name} gradient", derivative, difference, 1e-4)
    pair = Group(1, 0)
    if me < 2:
        mine = lm.tensor([float(me)], device=device)
        compare("in a group", distributed.all_gather(mine, group=pair).numpy(), [[1.0], [0.0]])
        got = distributed.send(mine + 3.0, 1) if me == 0 else distributed.receive(mine, 0)
        compare("send and receive", got.numpy(), [0.0] if me == 0 else [3.0])
    whole = lm.jit(several)(lm.tensor(own(me, (4,)), device=device))
    total = np.stack([own(r, (4,)) for r in range(n)]).sum(0)
    compare("equal ones", [y.numpy() for y in whole], [total, total, n * total])
    return wrong


def several(x: Any) -> Any:
    """Equal collective operations, and one of a constant."""
    first, second = distributed.all_reduce(x), distributed.all_reduce(x)
    return first, second, distributed.all_reduce(first)
