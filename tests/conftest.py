"""What holds for every test."""

import os

# JAX takes three quarters of the free memory of a GPU at its first use unless told not to; the tests beside it (those
# of other worker processes too) would run out of memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
