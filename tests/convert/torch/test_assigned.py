"""Values that forward assigns to buffers in other shapes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def cell(starts_anew: bool) -> Any:
    """A leaky state in a buffer that gets the shape of the batch."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 2)
            self.register_buffer("state", torch.zeros(0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if starts_anew:
                self.state = torch.zeros_like(self.state)
            for part in x:
                y = self.line(part)
                if self.state.shape != y.shape:
                    self.state = torch.zeros_like(y)
                self.state = 0.9 * self.state + y.tanh()
            return self.state * 2

    return Net()


def test_a_state_that_forward_starts_anew_is_left_out() -> None:
    import numpy as np
    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, x = cell(True), torch.randn(4, 3, 3)
    with pytest.warns(UserWarning, match="forward replaces the buffer 'state' by one of another shape"):
        converted = from_torch(net, x, share=False)
    found = check(net, converted, x)
    assert found.output < 1e-6, found
    assert found.gradient < 1e-6, found
    compiled = lm.jit(converted)
    for _ in range(2):
        x = torch.randn(4, 3, 3)
        np.testing.assert_allclose(compiled(x.numpy()).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert dict(converted.named_buffers())["state"].shape == (0,)


def test_a_state_that_the_next_call_reads_is_refused() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    net, x = cell(False), torch.randn(4, 5, 3)
    with pytest.raises(TorchConversionError, match=r"the buffer state \(0,\) becomes \(5, 2\)"):
        from_torch(net, x, fullgraph=True)
    with torch.no_grad():
        net(x)
        converted = from_torch(net, x, share=False)
        for _ in range(2):
            torch.testing.assert_close(torch.from_numpy(converted(x.numpy()).numpy()), net(x))


def test_a_shape_that_decides_is_read() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * len(self.last)
            self.last = x[0]
            return y

    with pytest.raises(TorchConversionError, match=r"the buffer last \(1,\) becomes \(3,\)"):
        from_torch(torch.nn.Sequential(Net()), torch.randn(4, 3), fullgraph=True)
