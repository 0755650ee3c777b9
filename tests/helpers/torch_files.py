"""Files written by PyTorch, as texts, to be read without PyTorch.

python -m tests.helpers.torch_files write     writes tests/helpers/torch_files.json with the installed PyTorch
"""

import base64
import io
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).with_name("torch_files.json")
#: Ways of writing files: options of `torch.save`.
WAYS: dict[str, dict[str, Any]] = {
    "zip": {},
    "protocol 4": {"pickle_protocol": 4},
    "protocol 5": {"pickle_protocol": 5},
    "legacy": {"_use_new_zipfile_serialization": False},
}
#: Element types, and the values of two elements in each.
TYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
         "float8_e5m2fnuz", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
         "complex64", "complex128")  # fmt: skip


def tree() -> Any:
    """The contents of the files."""
    import torch

    base = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    layer = torch.nn.Linear(2, 3)
    torch.nn.init.constant_(layer.weight, 0.5)
    torch.nn.init.constant_(layer.bias, -1.0)
    return {
        "model": {f"t.{t}": torch.tensor([0, 1]).to(getattr(torch, t)) for t in TYPES}
        | {"base": base, "part": base[1:, ::2], "turned": base.t(), "empty": torch.zeros(0, 3)}
        | {"scalar": torch.tensor(7.0), "repeated": torch.ones(1).expand(5), "again": base},
        "layer": layer.state_dict(),
        "parameter": layer.weight,
        "epoch": 3,
        "big": 2**40,
        "rates": [0.1, (None, True, "é")],
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "device": torch.device("cuda", 1),
        "raw": b"\x00\xff",
        "chosen": {1, 2},
        "number": 1 + 2j,
    }


def check(found: Any) -> None:
    """Raise AssertionError unless this is the contents of the files."""
    model, base = found["model"], np.arange(16, dtype=np.float32).reshape(4, 4)
    for name in TYPES:
        values = model[f"t.{name}"].numpy()
        want = [[0, 0], [1, 0]] if "complex" in name else [0, 1]
        np.testing.assert_array_equal(values.astype(np.float64), np.array(want, np.float64), name)
    assert model["t.bfloat16"].dtype.name == "bfloat16"
    assert model["t.float8_e5m2"].dtype.name == "float16"
    for name, want in {"base": base, "again": base, "part": base[1:, ::2], "turned": base.T}.items():
        np.testing.assert_array_equal(model[name].numpy(), want, name)
    assert np.shares_memory(model["base"].numpy(), model["again"].numpy())
    assert (model["empty"].shape, model["scalar"].item()) == ((0, 3), 7)
    assert model["repeated"].numpy().tolist() == [1] * 5
    np.testing.assert_array_equal(found["layer"]["weight"].numpy(), np.full((3, 2), 0.5))
    np.testing.assert_array_equal(found["parameter"].numpy(), np.full((3, 2), 0.5))
    rest = {k: found[k] for k in ("epoch", "big", "rates", "size", "device", "raw", "chosen", "number")}
    assert rest == {
        "epoch": 3, "big": 2**40, "rates": [0.1, (None, True, "é")], "size": (2, 3), "device": "cuda:1",
        "raw": b"\x00\xff", "chosen": {1, 2}, "number": 1 + 2j,
    }  # fmt: skip
    assert found["dtype"].name == "float16"


def written(way: str) -> bytes:
    """A file as written by the installed PyTorch."""
    import torch

    file = io.BytesIO()
    torch.save(tree(), file, **WAYS[way])
    return file.getvalue()


def files() -> dict[str, bytes]:
    """The files of the table."""
    table = json.loads(TABLE.read_text())
    return {way: zlib.decompress(base64.b64decode(text)) for way, text in table.items()}


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    packed = {way: base64.b64encode(zlib.compress(written(way), 9)).decode() for way in WAYS}
    TABLE.write_text(json.dumps(packed, indent=1) + "\n")
