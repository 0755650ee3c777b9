"""torchvision's classifiers and those of `nn.models` on the same weights: how far what they compute lies apart.

    python -m tests.judges.vision_networks                the table
    python -m tests.judges.vision_networks write          writes what is new of it into the file, which a test holds
    python -m tests.judges.vision_networks write NAME …   these networks anew

Of each network: the largest difference of the logits of two images in inference (float32), and of the gradients of
all parameters and the running statistics after training (float64), as shares of the largest number of each tensor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("vision_networks_table.json")
#: Pixels on a side, where it is not 64: what the auxiliary classifier and the partitions need.
SIZES = {"inception_v3": 299, "maxvit_t": 224}
#: Networks of more parameters are compared in inference alone: gradients in float64 take eight times their memory.
LARGEST = 20_000_000
#: What may lie between: float32 through a deep network, and float64.
OUTPUTS, GRADIENTS = 1e-4, 1e-3


def measure(name: str) -> dict[str, float | int]:
    """The line of a network."""
    from tests.helpers.nn.beside_torchvision import gradients_apart, outputs_apart, pair, prepare

    size = SIZES.get(name, 64)
    options = {"image_size": size - size % 14 if "14" in name else size} if name.startswith("vit") else {}
    size = options.get("image_size", size)
    our, their = pair(name, num_classes=10, **options)
    prepare(our, their)
    shape = (2, 3, size, size)
    found: dict[str, float | int] = {"size": size, "outputs": _rounded(outputs_apart(our, their, shape))}
    if sum(p.numel() for p in our.parameters()) <= LARGEST:
        found["gradients"] = _rounded(max(gradients_apart(our, their, shape).values()))
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.1e}")


def held() -> dict[str, dict[str, float | int]]:
    """The committed table."""
    return dict(json.loads(TABLE.read_text(encoding="utf-8"))) if TABLE.exists() else {}


def main(argv: list[str]) -> int:
    """The command line."""
    from tests.helpers.nn.beside_torchvision import CLASSIFIERS

    table = held()
    if argv[:1] == ["write"]:
        for name in argv[1:] or [name for name in CLASSIFIERS if name not in table]:
            table[name] = measure(name)
            print(name, table[name], flush=True)
            TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n", encoding="utf-8")
    for name, line in sorted(table.items()):
        print(f"{name:24} {line}")
    return int(
        any(line["outputs"] > OUTPUTS or line.get("gradients", 0) > GRADIENTS for line in table.values())
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
