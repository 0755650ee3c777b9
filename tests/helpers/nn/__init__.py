"""Layers and networks with PyTorch's results for them; `make_*.py` write the files."""

from pathlib import Path

GOLDEN_FILES = Path(__file__).parent
