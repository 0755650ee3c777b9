"""The ten things that a user does, in seconds and without a GPU."""

from pathlib import Path

import numpy as np

import lamina as lm
from lamina import nn, ops, optim

X = np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)
Y = np.array([0, 1, 2, 3])


def test_compute_on_tensors() -> None:
    a = lm.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (a @ a - 1.0).sum().item() == 50.0


def test_share_memory_with_numpy() -> None:
    array = np.zeros(3, np.float32)
    lm.from_dlpack(array).copy_([1.0, 2.0, 3.0])
    assert array.tolist() == [1.0, 2.0, 3.0]


def test_call_one_op_on_arrays() -> None:
    y = ops.conv2d(X, np.ones((2, 1, 3, 3), np.float32), padding="half", algorithm="benchmark")
    assert y.shape == (4, 2, 28, 28)


def test_differentiate() -> None:
    assert lm.grad(lambda x: ops.sum(x * x * x))(lm.tensor([1.0, 2.0])).tolist() == [3.0, 12.0]


def test_record_print_compile_and_run_a_graph() -> None:
    graph = lm.trace(lambda x: ops.softmax(ops.flatten(x, 1)), X, names=["x"])
    assert "softmax" in str(graph)
    np.testing.assert_allclose(lm.compile(graph, "cpu")(X)[0].numpy().sum(1), 1.0, rtol=1e-5)


def test_build_a_network_and_look_at_it() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))
    assert "(0): Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1))" in repr(net)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert net(X).shape == (4, 10)


def test_train() -> None:
    lm.manual_seed(0)
    step = lm.train_step(nn.LeNet(), ops.cross_entropy, optim.SGD(lr=0.05, momentum=0.9), device="cpu")
    losses = [step(X, Y).item() for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]


def test_train_on_real_data_and_evaluate() -> None:
    lm.manual_seed(0)
    net = nn.LeNet()
    data = lm.data.digits(batch_size=32, size=28)
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(lr=0.02, momentum=0.9), device="cpu")
    lm.fit(step, data, epochs=1, progress=False)
    assert lm.evaluate(net, lm.data.digits(128, 28, "validation"), device="cpu").accuracy > 0.7


def test_keep_and_load_weights(tmp_path: Path) -> None:
    first, second = nn.LeNet().eval(), nn.LeNet().eval()
    lm.save_safetensors(first, tmp_path / "net.safetensors")
    second.load_state_dict(lm.load_safetensors(tmp_path / "net.safetensors"))
    np.testing.assert_array_equal(first(X).numpy(), second(X).numpy())


def test_ask_which_devices_there_are() -> None:
    assert str(lm.devices()[0]) == "cpu"
    assert lm.device("auto") in lm.devices()
