"""Programs of probability and linear algebra, and of tables that are written: each against PyTorch."""

import math
from typing import Any

import numpy as np
import pytest

from tests.helpers.programs import Library, Program, check, run_beside

RNG = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(high: int, *shape: int) -> Any:
    return RNG.integers(0, high, shape)


def twice(batch: Any) -> list[tuple[Any, Any]]:
    return [batch() for _ in range(2)]


def squared(lib: Library, y: Any, targets: Any) -> Any:
    return lib.ops.mse_loss(y, targets)


def averaged(lib: Library, y: Any, targets: Any) -> Any:
    return y.mean()


# ------------------------------------------------------- a Gaussian process: the evidence by Cholesky's factor


def evidence(lib: Library) -> Any:
    class Process(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.log_scale = lib.nn.Parameter(lib.tensor(np.zeros(2, np.float32)))
            self.log_noise = lib.nn.Parameter(lib.tensor(np.float32(-1.0)))
            self.log_variance = lib.nn.Parameter(lib.tensor(np.float32(0.0)))

        def forward(self, x: Any, y: Any) -> Any:
            z = x / self.log_scale.exp()
            apart = ((z.unsqueeze(1) - z.unsqueeze(0)) ** 2).sum(-1)
            noise = (self.log_noise.exp() + 1e-3) * lib.ops.diag(x.new_ones(x.shape[0]))
            factor = lib.ops.linalg.cholesky(self.log_variance.exp() * (-0.5 * apart).exp() + noise)
            alpha = lib.ops.cholesky_solve(y.unsqueeze(-1), factor).squeeze(-1)
            return (
                0.5 * (y * alpha).sum() + factor.diagonal().log().sum() + 0.5 * len(y) * math.log(2 * math.pi)
            )

    return Process()


# ------------------------------------------------------------------------------- a Kalman filter's likelihood


def filtered(lib: Library) -> Any:
    class Filter(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.moves = lib.nn.Parameter(lib.tensor(np.eye(2, dtype=np.float32) * 0.9))
            self.log_q = lib.nn.Parameter(lib.tensor(np.zeros(2, np.float32)))
            self.log_r = lib.nn.Parameter(lib.tensor(np.zeros(2, np.float32)))
            self.register_buffer("first", lib.tensor(np.eye(2, dtype=np.float32)))

        def forward(self, y: Any) -> Any:
            noise, error = lib.ops.diag_embed(self.log_q.exp()), lib.ops.diag_embed(self.log_r.exp())
            m, p = y.new_zeros(y.size(0), 2), self.first.expand(y.size(0), 2, 2)
            found = y.new_zeros(y.size(0))
            for t in range(y.size(1)):
                m, p = m @ self.moves.T, self.moves @ p @ self.moves.T + noise
                s, left = p + error, y[:, t] - m
                gain = lib.ops.linalg.solve(s, p).mT
                far = (left.unsqueeze(1) @ lib.ops.inverse(s) @ left.unsqueeze(2)).flatten()
                found = found + 0.5 * (lib.ops.logdet(s) + far)
                m, p = m + (gain @ left.unsqueeze(-1)).squeeze(-1), p - gain @ p
            return found

    return Filter()


# ----------------------------------------- graphs by the eigenvectors of their Laplacian; whitening by an SVD


def spectral(lib: Library) -> Any:
    class Spectral(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gains = lib.nn.Parameter(lib.tensor(np.linspace(0, 1, 6, dtype=np.float32)))
            self.out = lib.nn.Linear(3, 2)

        def forward(self, x: Any, weights: Any) -> Any:
            degree = weights.sum(1).rsqrt()
            laplacian = lib.ops.diag(x.new_ones(6)) - degree[:, None] * weights * degree[None]
            values, vectors = lib.ops.linalg.eigh(laplacian)
            return self.out(vectors @ ((self.gains * (-values).exp())[:, None] * (vectors.T @ x)))

    return Spectral()


def whitened(lib: Library) -> Any:
    class Whitened(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = lib.nn.Linear(4, 4), lib.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            h = lib.ops.tanh(self.into(x))
            h = h - h.mean(0, keepdim=True)
            covariance = h.T @ h / (h.shape[0] - 1) + 1e-2 * lib.ops.diag(h.new_ones(4))
            u, s, vh = lib.ops.linalg.svd(covariance)
            return self.out(h @ (u @ lib.ops.diag(s.rsqrt()) @ vh))

    return Whitened()


# ------------------------------------------------- a recurrent network whose matrix is a rotation (exponential)


def rotated(lib: Library) -> Any:
    class Rotated(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            skew = np.sin(np.arange(16.0)).astype(np.float32).reshape(4, 4)
            self.skew, self.into = lib.nn.Parameter(lib.tensor(skew)), lib.nn.Linear(2, 4)

        def forward(self, x: Any) -> Any:
            turn = lib.ops.matrix_exp(self.skew.triu(1) - self.skew.triu(1).t())
            h = x.new_zeros(x.shape[0], 4)
            for step in x.unbind(1):
                h = lib.ops.relu(h @ turn + self.into(step))
            return h

    return Rotated()


# -------------------------------------------------------------------- directions (von Mises) and choices (probit)


def directions(lib: Library) -> Any:
    class Directions(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = lib.nn.Sequential(lib.nn.Linear(3, 8), lib.nn.Tanh(), lib.nn.Linear(8, 2))

        def forward(self, x: Any) -> Any:
            y = self.net(x)
            return lib.ops.stack([y[:, 0], lib.ops.softplus(y[:, 1])], 1)

    return Directions()


def von_mises(lib: Library, y: Any, angles: Any) -> Any:
    spread = lib.ops.special.i0e(y[:, 1]).log()
    return (spread + y[:, 1] * (1 - lib.ops.cos(angles - y[:, 0]))).mean()


def probit(lib: Library, y: Any, chosen: Any) -> Any:
    return -lib.ops.special.log_ndtr(y.squeeze(1) * (2 * chosen - 1)).mean()


# ----------------------------------------------- tables: categories whose rows keep to a norm, sums by segments


def tabular(lib: Library) -> Any:
    class Table(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            sizes = [(n, min(50, (n + 1) // 2)) for n in (5, 9)]
            self.embeddings = lib.nn.ModuleList([lib.nn.Embedding(n, d, max_norm=1.0) for n, d in sizes])
            self.norm = lib.nn.BatchNorm1d(3)
            width = sum(e.embedding_dim for e in self.embeddings) + 3
            self.net = lib.nn.Sequential(
                lib.nn.Linear(width, 8), lib.nn.SELU(), lib.nn.Linear(8, 1), lib.nn.Sigmoid()
            )

        def forward(self, kinds: Any, x: Any) -> Any:
            rows = [e(kinds[:, i]) for i, e in enumerate(self.embeddings)]
            return self.net(lib.ops.cat([*rows, self.norm(x)], 1)).squeeze(-1)

    return Table()


def segments(lib: Library) -> Any:
    class Segments(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = lib.nn.Linear(4, 6), lib.nn.Linear(18, 3)

        def forward(self, x: Any, segment: Any) -> Any:
            h = lib.ops.elu(self.into(x))
            at = segment[:, None].expand_as(h)
            sums = h.new_zeros(3, 6)
            sums.scatter_add_(0, at, h)
            count = h.new_zeros(3).index_add_(0, segment, h.new_ones(len(h))).clamp_(min=1)
            most = h.new_full((3, 6), -10.0).scatter_reduce_(0, at, h, "amax", include_self=True)
            return self.out(lib.ops.cat([sums, sums / count[:, None], most], -1))

    return Segments()


def symmetric() -> Any:
    half = RNG.random((6, 6))
    return (half + half.T).astype(np.float32)


PROGRAMS = {
    "process": Program(evidence, averaged, twice(lambda: ((floats(12, 2), floats(12)), floats(1))), 0.02),
    "filter": Program(filtered, averaged, twice(lambda: (floats(3, 8, 2), floats(1))), 0.02),
    "spectral": Program(spectral, squared, twice(lambda: ((floats(6, 3), symmetric()), floats(6, 2)))),
    "whitened": Program(whitened, squared, twice(lambda: (floats(12, 4), floats(12, 2)))),
    "rotated": Program(rotated, squared, twice(lambda: (floats(3, 6, 2), floats(3, 4))), 0.02),
    "directions": Program(directions, von_mises, twice(lambda: (floats(8, 3), floats(8)))),
    "probit": Program(
        lambda lib: lib.nn.Linear(3, 1), probit, twice(lambda: (floats(8, 3), whole(2, 8).astype(np.float32)))
    ),
    "tabular": Program(
        tabular,
        lambda lib, y, t: lib.ops.binary_cross_entropy(y, t),
        twice(
            lambda: (
                (np.stack([whole(5, 6), whole(9, 6)], 1), floats(6, 3)),
                whole(2, 6).astype(np.float32),
            )
        ),
    ),
    "segments": Program(
        segments,
        lambda lib, y, t: lib.ops.cross_entropy(y, t),
        twice(lambda: ((floats(9, 4), np.sort(whole(3, 9))), whole(3, 3))),
    ),
}

pytestmark = pytest.mark.feature("F106", "F112")


@pytest.mark.torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_torch(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_torch_on_cuda(name: str) -> None:
    check(PROGRAMS[name], "cuda")


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_that_a_program_makes_is_on_its_device(name: str) -> None:
    here, there = run_beside(PROGRAMS[name])
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
