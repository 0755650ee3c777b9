"""Networks on images as users write them, against PyTorch: outputs, gradients, ten steps of losses."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from tests.helpers.programs import LAMINA, Library, Program, check, pytorch, run_beside

pytestmark = pytest.mark.feature("F106", "F112")
RNG = np.random.default_rng(0)


def images(count: int, *shape: int) -> Any:
    return RNG.standard_normal((count, *shape)).astype(np.float32)


def labels(count: int, classes: int, *shape: int) -> Any:
    return RNG.integers(0, classes, (count, *shape))


def cross_entropy(lib: Library, outputs: Any, targets: Any) -> Any:
    return lib.ops.cross_entropy(outputs, targets)


def squared(lib: Library, outputs: Any, targets: Any) -> Any:
    return lib.ops.mse_loss(outputs, targets)


def vgg16_bn(lib: Library) -> Any:
    """Thirteen convolutions with norms, at an eighth of the width."""
    layers: list[Any] = []
    channels = 3
    for filters in (8, 8, 0, 16, 16, 0, 32, 32, 32, 0, 64, 64, 64, 0, 64, 64, 64, 0):
        if not filters:
            layers.append(lib.nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        layers += [
            lib.nn.Conv2d(channels, filters, kernel_size=3, padding=1, bias=False),
            lib.nn.BatchNorm2d(filters),
            lib.nn.ReLU(inplace=True),
        ]
        channels = filters

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = lib.nn.Sequential(*layers)
            self.avgpool = lib.nn.AdaptiveAvgPool2d((7, 7))
            self.classifier = lib.nn.Sequential(
                lib.nn.Linear(64 * 7 * 7, 48), lib.nn.ReLU(True), lib.nn.Dropout(p=0.0), lib.nn.Linear(48, 5)
            )

        def forward(self, x: Any) -> Any:
            x = self.avgpool(self.features(x))
            return self.classifier(lib.ops.flatten(x, 1))

    return Net()


def inception(lib: Library) -> Any:
    """Branches of different kernels, pools with ceil_mode, asymmetric convolutions, joined by cat(dim=1)."""

    class Block(lib.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.one = lib.nn.Conv2d(channels, 7, 1, bias=False)
            self.three = lib.nn.Sequential(
                lib.nn.Conv2d(channels, 5, 1), lib.nn.Conv2d(5, 9, (3, 1), padding=(1, 0)),
                lib.nn.Conv2d(9, 9, (1, 3), padding="same", bias=False),
            )  # fmt: skip
            self.pool = lib.nn.Sequential(
                lib.nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
                lib.nn.Conv2d(channels, 4, 1, bias=False),
            )
            self.norm = lib.nn.BatchNorm2d(20, eps=0.001)

        def forward(self, x: Any) -> Any:
            branches = [self.one(x), self.three(x), self.pool(x)]
            return lib.ops.relu(self.norm(lib.ops.cat(branches, dim=1)))

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = lib.nn.Conv2d(3, 8, 3, stride=2)
            self.blocks = lib.nn.ModuleList([Block(8), Block(20)])
            self.pool = lib.nn.MaxPool2d(3, 2, ceil_mode=True)
            self.head = lib.nn.Linear(20, 6)

        def forward(self, x: Any) -> Any:
            x = lib.ops.relu(self.stem(x))
            for block in self.blocks:
                x = self.pool(block(x))
            return self.head(lib.ops.adaptive_avg_pool2d(x, 1).flatten(1))

    return Net()


def unet(lib: Library) -> Any:
    """An encoder-decoder with skips at sizes that do not halve: reflected borders, transposed convolutions, pad."""

    def double(inside: int, outside: int) -> Any:
        return lib.nn.Sequential(
            lib.nn.Conv2d(inside, outside, 3, padding=1, padding_mode="reflect", bias=False),
            lib.nn.GroupNorm(2, outside),
            lib.nn.SiLU(), lib.nn.Conv2d(outside, outside, 3, padding=1, padding_mode="replicate", bias=False),
            lib.nn.InstanceNorm2d(outside, affine=True), lib.nn.Softplus(),
        )  # fmt: skip

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = lib.nn.ModuleList([double(3, 6), double(6, 8), double(8, 12)])
            self.up = lib.nn.ModuleList(
                [
                    lib.nn.ConvTranspose2d(12, 8, 2, stride=2),
                    lib.nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1),
                ]
            )
            self.join = lib.nn.ModuleList([double(16, 8), double(12, 6)])
            self.head = lib.nn.Conv2d(6, 4, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for i, block in enumerate(self.down):
                x = block(x)
                if i < 2:
                    kept.append(x)
                    x = lib.ops.max_pool2d(x, 2)
            for up, join in zip(self.up, self.join, strict=True):
                x, skip = up(x), kept.pop()
                rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
                x = lib.ops.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
                x = join(lib.ops.cat([skip, x], 1))
            return self.head(x)

    return Net()


def weighted(lib: Library, outputs: Any, targets: Any) -> Any:
    """Per pixel, the classes weighted, one of them ignored."""
    weight = lib.tensor(np.array([0.2, 1.0, 2.0, 0.5], np.float32))
    return lib.ops.cross_entropy(outputs, targets, weight=weight, ignore_index=3)


def depthwise(lib: Library) -> Any:
    """Depthwise convolutions at 35 and 61 channels with squeeze-and-excite."""

    class Excite(lib.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.fc1 = lib.nn.Conv2d(channels, channels // 4, 1)
            self.fc2 = lib.nn.Conv2d(channels // 4, channels, 1)

        def forward(self, x: Any) -> Any:
            scale = x.mean((2, 3), keepdim=True)
            return x * lib.ops.sigmoid(self.fc2(lib.ops.silu(self.fc1(scale))))

    def block(inside: int, outside: int, kernel: int, stride: int) -> list[Any]:
        return [
            lib.nn.Conv2d(inside, inside, kernel, stride, kernel // 2, groups=inside, bias=False),
            lib.nn.BatchNorm2d(inside), lib.nn.Hardswish(), Excite(inside),
            lib.nn.Conv2d(inside, outside, 1, bias=False), lib.nn.BatchNorm2d(outside),
        ]  # fmt: skip

    return lib.nn.Sequential(
        lib.nn.Conv2d(3, 35, 3, 2, 1), *block(35, 61, 3, 1), *block(61, 61, 5, 2),
        lib.nn.AdaptiveMaxPool2d(2), lib.nn.Flatten(), lib.nn.Linear(244, 7),
    )  # fmt: skip


def dense(lib: Library) -> Any:
    """Dense blocks whose channels are shuffled by view and transpose, in a ModuleDict, with dropout of channels."""

    class Shuffle(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            n, c, h, w = x.shape
            return x.view(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w)

    class Dense(lib.nn.Module):
        def __init__(self, channels: int, growth: int) -> None:
            super().__init__()
            self.layers = lib.nn.ModuleList(
                lib.nn.Sequential(
                    lib.nn.BatchNorm2d(channels + i * growth), lib.nn.ReLU(),
                    lib.nn.Conv2d(channels + i * growth, growth, 3, padding=1, groups=4, bias=False),
                    lib.nn.Dropout2d(0.0),
                )
                for i in range(3)
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = lib.ops.cat((x, layer(x)), dim=1)
            return x

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = lib.nn.ModuleDict(
                {
                    "stem": lib.nn.Conv2d(3, 8, 3, padding=1), "dense": Dense(8, 4), "shuffle": Shuffle(),
                    "mix": lib.nn.Conv2d(20, 12, 1, groups=4), "same": lib.nn.ChannelShuffle(3),
                    "pool": lib.nn.LPPool2d(2, 2), "second": Dense(12, 4),
                }
            )  # fmt: skip
            self.head = lib.nn.Linear(24, 5)

        def forward(self, x: Any) -> Any:
            for name, part in self.parts.items():
                x = lib.ops.relu(part(x)) + 0.01 if name == "same" else part(x)
            return self.head(x.mean(dim=(-2, -1)))

    return Net()


def convnext(lib: Library) -> Any:
    """Blocks of ConvNeXt with stochastic depth; which blocks are left out is an input."""

    class Block(lib.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.dwconv = lib.nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
            self.norm = lib.nn.LayerNorm(channels, eps=1e-6)
            self.pwconv1 = lib.nn.Linear(channels, 4 * channels)
            self.pwconv2 = lib.nn.Linear(4 * channels, channels)
            self.gamma = lib.nn.Parameter(lib.tensor(np.full(channels, 0.1, np.float32)))

        def forward(self, x: Any, keep: Any) -> Any:
            y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
            y = self.gamma * self.pwconv2(lib.ops.gelu(self.pwconv1(y)))
            return x + y.permute(0, 3, 1, 2) * keep.view(-1, 1, 1, 1)

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = lib.nn.Conv2d(3, 12, 4, stride=4)
            self.blocks = lib.nn.ModuleList([Block(12) for _ in range(3)])
            self.down = lib.nn.Conv2d(12, 16, 2, 2)
            self.head = lib.nn.Linear(16, 5)

        def forward(self, x: Any, keep: Any) -> Any:
            x = self.stem(x)
            for i, block in enumerate(self.blocks):
                x = block(x, keep[:, i])
            return self.head(self.down(x).mean([-2, -1]))

    return Net()


def transformer(lib: Library) -> Any:
    """A spatial transformer (Jaderberg et al. 2015), as in PyTorch's tutorial; it starts near the identity."""

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.localization = lib.nn.Sequential(
                lib.nn.Conv2d(1, 8, kernel_size=7), lib.nn.MaxPool2d(2, stride=2), lib.nn.ReLU(True),
                lib.nn.Conv2d(8, 10, kernel_size=5), lib.nn.MaxPool2d(2, stride=2), lib.nn.ReLU(True),
            )  # fmt: skip
            self.fc_loc = lib.nn.Sequential(
                lib.nn.Linear(10 * 3 * 3, 32), lib.nn.ReLU(True), lib.nn.Linear(32, 3 * 2)
            )
            self.conv1 = lib.nn.Conv2d(1, 10, kernel_size=5)
            self.conv2 = lib.nn.Conv2d(10, 20, kernel_size=5)
            self.fc = lib.nn.Linear(320, 10)

        def forward(self, x: Any) -> Any:
            where = self.fc_loc(self.localization(x).view(-1, 10 * 3 * 3))
            near = lib.tensor(np.array([[0.93, 0.05, 0.02], [-0.04, 1.06, 0.03]], np.float32))
            theta = where.view(-1, 2, 3) * 0.2 + near
            grid = lib.ops.affine_grid(theta, x.shape, align_corners=False)
            x = lib.ops.grid_sample(x, grid, align_corners=False)
            x = lib.ops.relu(lib.ops.max_pool2d(self.conv1(x), 2))
            x = lib.ops.relu(lib.ops.max_pool2d(self.conv2(x), 2))
            return lib.ops.log_softmax(self.fc(x.view(-1, 320)), dim=1)

    return Net()


def nll(lib: Library, outputs: Any, targets: Any) -> Any:
    return lib.ops.nll_loss(outputs, targets)


def autoencoder(lib: Library) -> Any:
    """Down by strides, up by bilinear upsampling and by a factor; the loss is on the image itself."""
    return lib.nn.Sequential(
        lib.nn.Conv2d(3, 8, 3, stride=2, padding=1), lib.nn.ELU(),
        lib.nn.Conv2d(8, 12, 3, stride=2, padding=1), lib.nn.ELU(),
        lib.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), lib.nn.Conv2d(12, 8, 3, padding=1),
        lib.nn.ELU(), lib.nn.Upsample(size=(29, 23), mode="bicubic", align_corners=True), lib.nn.ReflectionPad2d(1),
        lib.nn.Conv2d(8, 3, 3), lib.nn.Tanh(),
    )  # fmt: skip


def in_boxes(lib: Library, x: Any, boxes: Any) -> Any:
    """Features [K, C, 3, 3] in boxes; PyTorch without torchvision samples the same places by grid_sample."""
    if lib.nn is LAMINA.nn:
        return lib.ops.roi_align(x, boxes, 3, sampling_ratio=2, aligned=True)
    import torch

    along = (torch.arange(6) + 0.5) / 6
    xs, ys = (boxes[:, a : a + 1] + (boxes[:, a + 2 : a + 3] - boxes[:, a : a + 1]) * along for a in (1, 2))
    xs, ys = xs * 2 / x.shape[3] - 1, ys * 2 / x.shape[2] - 1
    grid = torch.stack([xs[:, None, :].expand(-1, 6, 6), ys[:, :, None].expand(-1, 6, 6)], -1)
    own = torch.nn.functional.grid_sample(
        x[boxes[:, 0].long()], grid, padding_mode="border", align_corners=False
    )
    return torch.nn.functional.avg_pool2d(own, 2)


def detector(lib: Library) -> Any:
    """The second stage of a detector: features in proposed boxes, their classes and their corrections."""

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = lib.nn.Sequential(
                lib.nn.Conv2d(3, 8, 3, padding=1),
                lib.nn.SiLU(),
                lib.nn.Conv2d(8, 12, 3, padding=1),
                lib.nn.SiLU(),
            )
            self.hidden = lib.nn.Linear(12 * 9, 24)
            self.scores, self.boxes = lib.nn.Linear(24, 4), lib.nn.Linear(24, 4)

        def forward(self, x: Any, boxes: Any) -> Any:
            y = in_boxes(lib, self.backbone(x), boxes).flatten(1)
            y = lib.ops.gelu(self.hidden(y))
            return self.scores(y), self.boxes(y)

    return Net()


def detected(lib: Library, outputs: Any, targets: Any) -> Any:
    (scores, moves), (kinds, goals) = outputs, targets
    return lib.ops.cross_entropy(scores, kinds) + lib.ops.smooth_l1_loss(moves, goals)


def proposals(count: int, pictures: int, height: int, width: int) -> Any:
    low = RNG.uniform(0, 0.5, (count, 2)) * (width, height)
    high = low + RNG.uniform(0.1, 0.5, (count, 2)) * (width, height)
    return np.concatenate([RNG.integers(0, pictures, (count, 1)), low, high], 1).astype(np.float32)


X = images(4, 3, 29, 23)
PROGRAMS = {
    "vgg16_bn": Program(vgg16_bn, cross_entropy, [(images(4, 3, 97, 131), labels(4, 5)) for _ in range(2)], lr=2**-8),
    "inception": Program(inception, cross_entropy, [(images(4, 3, 43, 37), labels(4, 6)) for _ in range(3)], lr=0.02),
    "unet": Program(unet, weighted, [(images(2, 3, 61, 47), labels(2, 4, 61, 47))], lr=0.02),
    "depthwise": Program(depthwise, cross_entropy, [(images(4, 3, 33, 31), labels(4, 7))], lr=0.01),
    "dense": Program(dense, cross_entropy, [(images(4, 3, 14, 18), labels(4, 5))], lr=0.02),
    "convnext": Program(
        convnext,
        cross_entropy,
        [
            ((images(4, 3, 32, 40), (RNG.random((4, 3)) < 0.8).astype(np.float32) / np.float32(0.8)), labels(4, 5))
            for _ in range(2)
        ],
        lr=1e-3,
        adam=True,
    ),
    "transformer": Program(transformer, nll, [(images(8, 1, 28, 28), labels(8, 10)) for _ in range(2)], lr=0.02),
    "detector": Program(
        detector,
        detected,
        [((images(3, 3, 17, 21), proposals(10, 3, 17, 21)), (labels(10, 4), images(10, 4))) for _ in range(2)],
        lr=0.02,
    ),
    "autoencoder": Program(autoencoder, squared, [(X, np.tanh(X))], lr=0.05),
}  # fmt: skip


#: Whose choices of maxima between nearly equal numbers decide about gradients: compared in double precision. The
#: smallest difference grows with each step, so the rate is one that float32, the dtype of rates, has exactly.
IN_DOUBLE = ("vgg16_bn", "dense")
SINGLE = [name for name in PROGRAMS if name not in IN_DOUBLE]


@pytest.mark.torch
@pytest.mark.parametrize("name", SINGLE)
def test_as_torch(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.torch
@pytest.mark.parametrize("name", IN_DOUBLE)
def test_as_torch_in_double(name: str) -> None:
    """Outputs and gradients in double precision, and ten steps of losses."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    program, lib = PROGRAMS[name], pytorch()
    theirs, mine = program.make(lib).double(), program.make(LAMINA)
    mine.load_state_dict({k: v.numpy().astype(np.float32) for k, v in theirs.state_dict().items()})
    rule = torch.optim.SGD(theirs.parameters(), program.lr, momentum=0.9)
    step = lm.train_step(
        mine,
        lambda y, t: program.loss(LAMINA, y, t),
        optim.SGD(lr=program.lr, momentum=0.9),
        device="cpu",
        precision="fp64",
    )
    for number in range(10):
        x, goals = program.batches[number % len(program.batches)]
        rule.zero_grad()
        outputs = theirs(torch.tensor(x.astype(np.float64)))
        loss = program.loss(lib, outputs, torch.tensor(goals))
        loss.backward()
        if number == 0:

            def run(net: Any, x: Any = x, goals: Any = goals) -> Any:
                y = net(lm.tensor(x.astype(np.float64)))
                return program.loss(LAMINA, y, lm.tensor(goals)), y

            state = {k: v.numpy().copy() for k, v in mine.state_dict().items()}
            grads, y = lm.grad(run, has_aux=True)(mine)
            mine.load_state_dict(state)  # the norms' statistics, which moved
            np.testing.assert_allclose(y.numpy(), outputs.detach().numpy(), rtol=0, atol=1e-10)
            for key, value in theirs.named_parameters():
                np.testing.assert_allclose(
                    grads[key].numpy(), value.grad.numpy(), rtol=0, atol=1e-8, err_msg=key
                )
        rule.step()
        assert step(x.astype(np.float64), goals).item() == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("name", SINGLE)
def test_as_torch_on_cuda(name: str) -> None:
    check(PROGRAMS[name], "cuda")


def test_a_users_drop_path_drops_whole_samples() -> None:
    """Stochastic depth made of `Dropout` on one number for each sample; inference leaves it out."""

    class DropPath(nn.Module):
        def __init__(self, p: float) -> None:
            self.dropout = nn.Dropout(p)

        def forward(self, x: Any) -> Any:
            return x * self.dropout(x[:, :1, :1, :1] * 0 + 1)

    nn.manual_seed(0)
    layer, x = DropPath(0.25), lm.tensor(images(400, 3, 2, 2))
    ratio = (layer(x) / x).numpy()
    assert set(np.unique(ratio.round(5))) == {np.float32(0), np.float32(1.33333)}
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1, :1, :1], ratio.shape), rtol=1e-5)
    assert abs((ratio[:, 0, 0, 0] == 0).mean() - 0.25) < 0.06
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x.numpy())
    net = nn.Sequential(nn.Conv2d(3, 4, 1), DropPath(0.5), nn.Flatten(), nn.Linear(16, 2))
    step = lm.train_step(net, lm.ops.cross_entropy, optim.SGD(lr=0.1), device="cpu")
    losses = {step(images(8, 3, 2, 2), np.arange(8) % 2).item() for _ in range(4)}
    assert len(losses) == 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_that_a_program_makes_is_on_its_device(name: str) -> None:
    here, there = run_beside(PROGRAMS[name])
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_the_programs_use_public_names_alone() -> None:
    for name, program in PROGRAMS.items():
        net = program.make(LAMINA)
        assert sum(p.numel() for p in net.parameters()) > 500, name
