"""What several test files share: references, case lists, emulated GPUs, stubs of the driver, recorders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What cuDNN says about an H200, read on one with cuDNN 9.19: plans are made from it without a GPU.
H200_PROPERTIES = ROOT / "src" / "lamina" / "cudnn" / "h200_cudnn919.json"
