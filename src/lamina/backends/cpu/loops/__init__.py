"""Kernels for the processor that no library has: loops over memory, written in Python, compiled by LLVM.

`code` is the language: typed values, loops, loads and stores, each written down as LLVM assembly when it is called.
A `Value` answers NumPy's functions, so that an op's NumPy meaning (`Op.reference`), called on the elements of one
step of a loop, *is* the body of its kernel. `functions` has exp, log and their relatives by polynomials, `compiler`
makes machine code and keeps it, `kernel` binds it to memory and to the threads of oneDNN.

Needs llvmlite (`pip install lamina[cpu]`); without it nothing here answers, and NumPy computes.
"""

from lamina.backends.cpu.loops import functions

__all__ = ["functions"]
