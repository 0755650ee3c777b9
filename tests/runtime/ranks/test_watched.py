"""Communicators under watch do what the inner ones do, and say what it is."""

import numpy as np

from lamina.runtime.ranks.communicator import Alone, Array
from lamina.runtime.ranks.progress import progress
from lamina.runtime.ranks.watched import WatchedCommunicator


class Noting(Alone):
    """A group of one that notes what is under way."""

    seen: list[str]

    def all_gather(self, x: Array, out: Array) -> None:
        self.seen.append(f"{progress.op} {progress.group}")
        super().all_gather(x, out)


def test_each_call_says_what_it_is() -> None:
    inner = Noting((3,), 0)
    inner.seen = []
    comm = WatchedCommunicator(inner, 4)
    x = np.arange(3, dtype=np.float32)
    comm.all_reduce(x, "mean")
    comm.barrier()
    comm.start_all_reduce(x, "sum").wait()
    comm.start_reduce_scatter(x[None], x, "sum").wait()
    out = np.zeros((1, 3), np.float32)
    comm.all_gather(x, out)
    assert inner.seen == ["all_reduce 3", "barrier 3", "all_reduce 3", "all_gather 3"]
    np.testing.assert_array_equal(out[0], [0, 1, 2])
    assert progress.op == ""
    assert comm.all_gather_object("a") == ["a"]


def test_what_all_ranks_do_is_known_with_its_types_and_shapes() -> None:
    comm, x = WatchedCommunicator(Alone((3,), 0), 4), np.arange(6, dtype=np.float32).reshape(2, 3)
    progress.courses.pop("3", None)
    comm.all_reduce(x, "mean")
    comm.start_all_reduce(x[0], "max").wait()
    comm.broadcast(x, 0)
    comm.barrier()
    comm.exchange({}, {})  # partners of their own
    assert [what for _, _, what in progress.courses["3"].latest] == [
        "all_reduce (mean) of float32[2, 3]",
        "all_reduce (max) of float32[3]",
        "broadcast (from 3) of float32[2, 3]",
        "barrier",
    ]
