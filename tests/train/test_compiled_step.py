"""The programs of a training step: where state lies, planning without running."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.runtime import NoGpuError
from lamina.spec import Spec, float32
from tests.helpers.planned import H200
from tests.helpers.steps import BACKENDS, RNG, make


@pytest.mark.feature("B028")
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_of_a_group_leave_the_state_where_it_lies(backend: str) -> None:
    """The one that gathers does not touch the optimizer's state, which lies as the one that updates wants it."""
    nn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Flatten()
    )
    step = lm.train_step(
        net,
        lambda y, _: ops.mean(ops.square(y)),
        optim.Adam(1e-3),
        accumulate=2,
        device="cpu",
        backend=backend,
    )
    x, labels = RNG.standard_normal((2, 3, 9, 9)).astype(np.float32), np.zeros(2, np.int64)
    lies: list[dict[str, int]] = []
    for _ in range(8):
        step(x, labels)
        lies.append({name: id(value.buffer) for name, value in step.state.named().items()})
        for executable in (program.executable for program in step._programs):
            held = [executable._shared.get(slot) for slot in executable.program.inputs]
            assert {id(b) for b in held if b is not None} <= {
                *lies[-1].values()
            }  # not where state lay before
    assert len(step._programs) == 2
    assert lies[2:] == [lies[1]] * 6


def test_null_backend_plans_without_running() -> None:
    step = make(nn.AlexNet(), optim.SGD(0.1, 0.9), backend="null")
    program = step.program(lm.Spec((1024, 1, 224, 224), lm.float32), lm.Spec((1024,), lm.int64))
    assert 0 < program.executable.peak_bytes < program.executable.unplanned_bytes


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_is_planned_for_a_gpu_that_is_not_there(precision: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    step = lm.train_step(
        net, ops.mse_loss, optim.Adam(lr=0.1), device=H200, precision=precision, accumulate=2
    )
    spec = Spec((3, 4), float32)
    assert step.program(spec, spec).executable.kernels > 0
    assert all(x.device.kind == "cpu" for x in step.state.named().values())
    with pytest.raises(NoGpuError, match="stands for a GPU that is not there"):
        step(np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32))


@pytest.mark.filterwarnings("ignore:.*16 programs:UserWarning")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_steps_without_a_program_train_as_those_with_one(
    precision: str, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose masks select other numbers, computed op by op from some number of programs on."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
            self.register_buffer("seen", lm.zeros(()))

        def forward(self, x: lm.Tensor, keep: lm.Tensor) -> lm.Tensor:
            self.seen.copy_(self.seen + keep.sum().cast(self.seen.dtype))
            return self.layers(x)[keep]

    def trained(most: int) -> tuple[list[float], dict[str, np.ndarray], int]:
        monkeypatch.setattr("lamina.train.step.MANY", most)
        nn.manual_seed(0)
        net, rng = Masked(), np.random.default_rng(1)
        step = lm.train_step(
            net, lambda y, t: ops.mse_loss(y, t[: y.shape[0]]), optim.SGD(lr=0.1, momentum=0.9), precision=precision,
            accumulate=accumulate, device="cpu", keep_grads=True,
        )  # fmt: skip
        losses = []
        for count in (3, 5, 4, 5, 8, 3):
            x, keep = rng.standard_normal((8, 6)).astype(np.float32), np.arange(8) < count
            losses.append(float(step((x, keep), rng.standard_normal((8, 3)).astype(np.float32))))
            assert step.grads is not None
            assert step.grads["layers.0.weight"].shape == (8, 6)
        state = {name: x.numpy().astype(np.float32) for name, x in step.state.named().items()}
        return losses, state, len(step._programs)

    losses, state, count = trained(16)
    again, same, fewer = trained(1)
    assert fewer < count
    close = {"fp32": 1e-5, "bf16": 0.02, "fp16": 0.005}[precision]
    np.testing.assert_allclose(again, losses, rtol=close)
    assert same.keys() == state.keys()
    for name, x in state.items():
        np.testing.assert_allclose(same[name], x, rtol=close, atol=close, err_msg=name)
