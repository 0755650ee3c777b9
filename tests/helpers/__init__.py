"""What several test files share: references, case lists, emulated GPUs, stubs of the driver, recorders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What cuDNN says about an H200, read on one with cuDNN 9.19.
H200_PROPERTIES = ROOT / "tests" / "data" / "h200_deviceprop_cudnn919.json"
