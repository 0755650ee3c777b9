"""Tensors of more than 2^31 elements on a GPU: a thousand sampled outputs are right, or a refusal says why."""

import fcntl
import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError

pytestmark = pytest.mark.gpu

SAMPLES = 1000
#: What an op may raise that does not take so many elements.
TYPED = (ShapeError, DTypeError, NotImplementedError, ValueError)
#: Rows of 2^15 + 1 elements, so that the product is past 2^31.
ROWS, COLUMNS = 2**16, 2**15 + 1


@pytest.fixture(autouse=True)
def torch_with_room() -> Iterator[object]:
    """torch, with 40 GB of the device's memory: one test at a time, whichever process it is in."""
    torch = pytest.importorskip("torch")
    _, total = torch.cuda.mem_get_info()
    if total < 70 << 30:
        pytest.skip("needs a GPU with 70 GB of memory")
    with (Path(tempfile.gettempdir()) / "lamina-huge-tensors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.manual_seed(0)
        yield torch
        gc.collect()
        lm.device("cuda:0").empty_cache()
        torch.cuda.empty_cache()


def of(x: object) -> lm.Tensor:
    return lm.from_dlpack(x)


def at(torch: object, y: object, count: int = SAMPLES) -> object:
    """Random positions [count, rank] in a tensor's shape, the first and the last one among them."""
    places = torch.stack([torch.randint(0, n, (count,)) for n in y.shape], 1)
    places[0], places[1] = 0, torch.tensor(y.shape) - 1
    return places


def agrees(
    torch: object, run: Callable[[], lm.Tensor], wanted: Callable[[object], object], tolerance: float
) -> None:
    """`wanted` gives the exact values at positions [n, rank], float64, on the host."""
    try:
        y = torch.from_dlpack(run())
    except TYPED as error:
        if str(error):
            return  # a refusal that says why
        raise
    places = at(torch, y)
    found = y[tuple(places.T.cuda())].double().cpu()
    torch.testing.assert_close(found, wanted(places).double().cpu(), rtol=tolerance, atol=tolerance)


def small(torch: object, *shape: int, dtype: str = "bfloat16", low: int = -2, high: int = 3) -> object:
    return torch.randint(low, high, shape, device="cuda", dtype=torch.int8).to(getattr(torch, dtype))


def test_elementwise(torch_with_room: object) -> None:
    torch = torch_with_room
    x = small(torch, ROWS, COLUMNS, dtype="int8", low=-100, high=100)
    agrees(torch, lambda: ops.add(of(x), 1), lambda p: x[tuple(p.T.cuda())] + 1, 0.0)
    b = x[0].clone()
    agrees(torch, lambda: ops.maximum(of(x), of(b)), lambda p: torch.maximum(x, b)[tuple(p.T.cuda())], 0.0)


def test_activation(torch_with_room: object) -> None:
    torch = torch_with_room
    x = small(torch, ROWS, COLUMNS)
    agrees(torch, lambda: ops.relu(of(x)), lambda p: x[tuple(p.T.cuda())].clamp(min=0), 0.0)


def test_matmul(torch_with_room: object) -> None:
    torch = torch_with_room
    a, b = small(torch, ROWS, 32), small(torch, 32, COLUMNS)
    rows = lambda p: (a[p[:, 0].cuda()].double() * b[:, p[:, 1].cuda()].T.double()).sum(1)  # noqa: E731
    agrees(torch, lambda: ops.matmul(of(a), of(b)), rows, 0.0)


def test_convolution(torch_with_room: object) -> None:
    torch = torch_with_room
    x, w = small(torch, 129, 16, 1024, 1024), small(torch, 16, 16, 3, 3)

    def wanted(places: object) -> object:
        out = []
        for n, k, i, j in places.tolist():
            patch = torch.zeros(16, 3, 3, dtype=torch.float64)
            rows, columns = slice(max(i - 1, 0), i + 2), slice(max(j - 1, 0), j + 2)
            seen = x[n, :, rows, columns].double().cpu()
            top, left = 1 - min(i, 1), 1 - min(j, 1)
            patch[:, top : top + seen.shape[1], left : left + seen.shape[2]] = seen
            out.append((patch * w[k].double().cpu()).sum())
        return torch.stack(out)

    agrees(torch, lambda: ops.conv2d(of(x), of(w), padding=1), wanted, 8e-3)


def test_pool(torch_with_room: object) -> None:
    torch = torch_with_room
    x = small(torch, 129, 16, 1024, 1040, low=-100, high=100)

    def wanted(places: object) -> object:
        n, c, i, j = places.T.cuda()
        taps = [x[n, c, 2 * i + a, 2 * j + b] for a in (0, 1) for b in (0, 1)]
        return torch.stack(taps).amax(0)

    agrees(torch, lambda: ops.max_pool2d(of(x), 2), wanted, 0.0)


def test_reductions(torch_with_room: object) -> None:
    torch = torch_with_room
    x = small(torch, ROWS, COLUMNS, low=0, high=2)
    agrees(
        torch,
        lambda: ops.sum(of(x), 1, dtype="float32"),
        lambda p: x.sum(1, dtype=torch.float64)[p[:, 0].cuda()],
        1e-6,
    )
    agrees(torch, lambda: ops.amax(of(x), 0), lambda p: x.amax(0)[p[:, 0].cuda()], 0.0)


def test_softmax(torch_with_room: object) -> None:
    torch = torch_with_room
    x = small(torch, ROWS, COLUMNS)

    def wanted(places: object) -> object:
        rows, columns = places.T.cuda()
        return x[rows].double().softmax(1).gather(1, columns[:, None])[:, 0]

    agrees(torch, lambda: ops.softmax(of(x), -1), wanted, 8e-3)


def test_moves(torch_with_room: object) -> None:
    torch = torch_with_room
    x = small(torch, ROWS, COLUMNS, dtype="int8", low=-100, high=100)
    turned = lambda p: x[p[:, 1].cuda(), p[:, 0].cuda()]  # noqa: E731
    agrees(torch, lambda: ops.transpose(of(x), 0, 1).contiguous(), turned, 0.0)
    agrees(
        torch,
        lambda: ops.cat([of(x[: ROWS // 2]), of(x[ROWS // 2 :])], 0),
        lambda p: x[tuple(p.T.cuda())],
        0.0,
    )
    rows = torch.randperm(ROWS, device="cuda")
    agrees(
        torch,
        lambda: ops.index_select(of(x), 0, of(rows)),
        lambda p: x[rows[p[:, 0].cuda()], p[:, 1].cuda()],
        0.0,
    )
