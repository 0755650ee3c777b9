"""First calls on a CPU beside PyTorch: from the start of a process, after the import, and for another batch size.

    python -m benchmarks.first_call [NETWORK …] [--rounds N] [--out FOLDER]

A network with random weights runs a batch of one sample, then one of three: PyTorch eagerly, Lamina op by op
("eager") and by a `Predictor` ("compiled"). Every run is a process of its own with one thread and empty caches, but
with Python's bytecode, as in an installed package (written by a round that does not count).
Times are processor times, independent of other programs: `start` until the first result (the interpreter,
imports, the network's construction, the call), `first` the first call alone, `again` a later one, `other` the first
call with the other batch size. The minimum over several rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import processor, versions, write

#: Network -> shape of one sample.
NETWORKS = {
    "resnet18": (3, 224, 224),
    "mobilenet_v2": (3, 224, 224),
    "vgg11": (3, 224, 224),
    "unet": (3, 128, 128),
    "gru": (100, 128),
}
WAYS = ("torch", "eager", "compiled")
TIMES = ("start", "first", "again", "other")


def torch_network(name: str) -> Callable[[Any], Any]:
    """The network as a function of an array, in PyTorch."""
    import torch  # a process imports only the library that it measures

    torch.set_num_threads(1)
    if name == "unet":
        from benchmarks.torch_networks import UNet

        net: torch.nn.Module = UNet(2, 16, 3)
    elif name == "gru":
        net = torch.nn.GRU(128, 256, batch_first=True)
    else:
        from benchmarks import networks, peer_torch

        net = peer_torch.build(networks.NETWORKS[name](), NETWORKS[name])
    net.eval()

    def call(x: np.ndarray[Any, Any]) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(x))

    return call


def lamina_network(name: str, compiled: bool) -> Callable[[Any], Any]:
    """The network as a function of an array."""
    import lamina as lm

    if name == "unet":
        net: lm.nn.Module = lm.nn.models.UNet(3, 2, width=16)
    elif name == "gru":
        net = lm.nn.GRU(128, 256, batch_first=True)
    else:
        net = lm.nn.models.get_model(name)
    net.eval()
    if compiled:
        return lm.infer.Predictor(net, device="cpu")
    return lambda x: net(lm.tensor(x))


def measured(name: str, way: str) -> dict[str, float]:
    """Seconds of this process for one network."""
    net = torch_network(name) if way == "torch" else lamina_network(name, way == "compiled")
    one, three = (np.ones((n, *NETWORKS[name]), np.float32) for n in (1, 3))

    def seconds(x: np.ndarray[Any, Any]) -> float:
        begun = time.process_time()
        net(x)
        return time.process_time() - begun

    first, start = seconds(one), time.process_time()
    again = min(seconds(one) for _ in range(5))
    return {"start": start, "first": first, "again": again, "other": seconds(three)}


def apart(name: str, way: str, bytecode: str) -> dict[str, float]:
    """The same in a process of its own, with an empty cache; bytecode: the folder for Python's bytecode."""
    command = [sys.executable, "-m", "benchmarks.first_call", name, "--here", way]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LAMINA_CACHE": folder, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def least(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The minimum of each time."""
    return {t: min(r[t] for r in rounds) for t in TIMES}


def text(name: str, found: dict[str, dict[str, float]]) -> str:
    """One network as text: milliseconds, and the ratio to PyTorch's."""
    lines = [name]
    for way, times in found.items():
        shown = [f"{t} {1e3 * s:8.1f} ({s / found['torch'][t]:5.2f})" for t, s in times.items()]
        lines.append(f"  {way:8}  " + "  ".join(shown))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", choices=WAYS, help="in this process, one result as JSON")
    parser.add_argument("--out", type=Path, help="folder for a result file")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.networks if name not in NETWORKS]:
        parser.error(f"no such network: {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    names = options.networks or list(NETWORKS)
    if options.here:
        for name in names:
            print(json.dumps(measured(name, options.here)))
        return 0
    rows = {}
    with tempfile.TemporaryDirectory() as bytecode:
        for name in names:
            rounds = [{way: apart(name, way, bytecode) for way in WAYS} for _ in range(options.rounds + 1)]
            rows[name] = {way: least([r[way] for r in rounds[1:]]) for way in WAYS}
            print(text(name, rows[name]), flush=True)
    means = {
        way: {t: exp(sum(log(r[way][t] / r["torch"][t]) for r in rows.values()) / len(rows)) for t in TIMES}
        for way in WAYS[1:]
    }
    print("geometric means of times beside PyTorch's:", json.dumps(means))
    if options.out:
        what = versions(["lamina", "numpy", "torch", "onednn-cpu-gomp"])
        write(
            "first_call_cpu",
            {"machine": processor(), "versions": what, "means": means, "rows": rows},
            options.out,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
