"""Custom ops: one by an expression, one by a kernel; on the CPU they run by their NumPy reference.

Prints the value and gradient of an activation that is not in the package, distances computed by a custom op, and the
loss of a network that contains both before and after its training. On a GPU the same ops run as CUDA.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import lamina as lm
from lamina import nn, ops
from lamina.ops.core import Sample, call
from lamina.ops.custom import CudaKernel, CustomOp
from lamina.spec import Spec


@dataclass(frozen=True)
class Snake(CustomOp):
    """x + sin(a x)^2 / a, for periodic data (Ziyin et al. 2020)."""

    a: float
    elementwise = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (x.open,)

    def vjp(self, grads, inputs, outputs):
        """1 + sin(2 a x), written with ops: it can be differentiated again."""
        return (grads[0] * (ops.sin(inputs[0] * (2 * self.a)) + 1),)

    def reference(self, x):
        return (x + np.sin(self.a * x) ** 2 / self.a,)

    def expression(self, arguments: Sequence[str], type: str) -> str:
        (x,), f = arguments, "f" if type == "f32" else ""
        return f"{x} + sin{f}(({type}){self.a} * {x}) * sin{f}(({type}){self.a} * {x}) / ({type}){self.a}"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in [(4,), (2, 3), (1, 2, 5), (), (3, 1)]:
            yield Sample.of(cls(1.5), shape)


@dataclass(frozen=True)
class Distances(CustomOp):
    """(n, d), (m, d) -> (n, m): the sums of absolute differences between the rows."""

    arity = 2

    def infer(self, x: Spec, y: Spec) -> tuple[Spec]:
        self.check_float(x, y)
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
            raise lm.ShapeError(f"distances: takes (n, d) and (m, d), got {x.shape} and {y.shape}")
        return (Spec((x.shape[0], y.shape[0]), x.dtype),)

    def vjp(self, grads, inputs, outputs):
        x, y = inputs
        signs = ops.sign(ops.unsqueeze(x, 1) - ops.unsqueeze(y, 0)) * ops.unsqueeze(grads[0], 2)
        return ops.sum(signs, 1), -ops.sum(signs, 0)

    def reference(self, x, y):
        return (np.abs(x[:, None] - y[None]).sum(2),)

    def cuda(self, x: Spec, y: Spec) -> CudaKernel:
        """One thread per pair of rows; half types are summed in float."""
        source = """
        extern "C" __global__ void distances(const In0 *x, const In1 *y, Out0 *d, int n, int m, int size)
        {
            const long long i = blockIdx.x * 256LL + threadIdx.x;
            if (i >= (long long)n * m) return;
            const In0 *a = x + i / m * size;
            const In1 *b = y + i % m * size;
            Wide<In0>::type sum = 0;
            for (int k = 0; k < size; k++) {
                const Wide<In0>::type difference = widen(a[k]) - widen(b[k]);
                sum += difference < 0 ? -difference : difference;
            }
            d[i] = narrow<Out0>(sum);
        }
        """
        n, m, size = x.shape[0], y.shape[0], x.shape[1]
        return CudaKernel("distances", source, threads=n * m, numbers=tuple(map(np.int32, (n, m, size))))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for n, m, size in [(3, 4, 5), (1, 1, 1), (7, 2, 3), (2, 300, 2), (5, 1, 17)]:
            yield Sample.of(cls(), (n, size), (m, size))


class Net(nn.Module):
    """Distances of the features to 8 learned points, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(1, 16)
        self.points = nn.Parameter(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(call(Distances(), call(Snake(1.0), self.features(x)), self.points))


def rounded(x) -> list[float]:
    """The numbers rounded to four digits."""
    return [round(v, 4) for v in x.tolist()]


def main() -> None:
    """Runs both ops, then trains the network."""
    x = lm.tensor([0.0, 1.0, 2.0])
    print("snake   ", rounded(call(Snake(1.0), x)))
    print("gradient", rounded(lm.grad(lambda x: ops.sum(call(Snake(1.0), x)))(x)))
    rows = lm.tensor([[0.0, 1.0], [2.0, 4.0]])
    print("distances", call(Distances(), rows, rows).tolist())

    lm.manual_seed(0)
    net, device = Net(), lm.device()
    net.to(device)
    times = np.linspace(-3, 3, 64, dtype=np.float32)[:, None]
    step = lm.train_step(net, ops.mse_loss, lm.optim.Adam(lr=0.01), device=device)
    losses = [float(step(times, np.sin(2 * times))) for _ in range(300)]
    print(f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after")


if __name__ == "__main__":
    main()
