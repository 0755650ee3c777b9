"""The table of the backend's planning functions."""

from lamina.backends import Kernels

kernels = Kernels("cuda")
