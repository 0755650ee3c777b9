"""Writes sequences.npz: results of PyTorch's sequence layers, and gradients. Run with PyTorch installed:

python -m tests.helpers.nn.make_sequences
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.nn.sequence_cases import CASES

FILE = Path(__file__).with_name("sequences.npz")


def flat(found: Any) -> list[Any]:
    """The tensors of nested tuples, without None."""
    if found is None:
        return []
    return [found] if not isinstance(found, tuple | list) else [x for part in found for x in flat(part)]


def main() -> None:
    import torch

    torch.manual_seed(1)
    kept: dict[str, Any] = {}
    for i, case in enumerate(CASES):
        layer = getattr(torch.nn, case.layer)(*case.args, **case.kwargs)
        inputs = [torch.randn(shape, requires_grad=True) for shape in case.inputs]
        options = {
            k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in case.options.items()
        }
        outputs = flat(layer(*inputs, **options))
        loss = sum((y * torch.cos(torch.arange(y.numel()).reshape(y.shape))).sum() for y in outputs)
        parameters = dict(layer.named_parameters())
        grads = torch.autograd.grad(loss, [*inputs, *parameters.values()])
        kept |= {f"{i}/x{n}": x.detach().numpy() for n, x in enumerate(inputs)}
        kept |= {f"{i}/y{n}": y.detach().numpy() for n, y in enumerate(outputs)}
        kept |= {f"{i}/state/{k}": v.numpy() for k, v in layer.state_dict().items()}
        names = [f"x{n}" for n in range(len(inputs))] + list(parameters)
        kept |= {f"{i}/grad/{name}": g.numpy() for name, g in zip(names, grads, strict=True)}
        kept[f"{i}/repr"] = np.array(repr(layer))
    np.savez_compressed(FILE, **kept)


if __name__ == "__main__":
    main()
