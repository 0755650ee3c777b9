"""Plans for NVIDIA GPUs. Each folder is a family of ops, whose planning functions are found by a scan."""

from lamina.backends.cuda.cuda_backend import CudaBackend, backend
from lamina.backends.cuda.registry import register_families

register_families()

__all__ = ["CudaBackend", "backend"]
