"""CPU kernels that no library has: loops over memory, written in Python, compiled by LLVM.

`code` is the language: typed values, loops, loads and stores, each emitted as LLVM assembly when it is called. A
`Scalar` implements NumPy's functions, so that an op's NumPy reference (`Op.reference`), called on the elements of one
loop iteration, *is* the body of its kernel. `functions` has exp, log and their relatives by polynomials, `compiler`
makes and caches machine code, `kernel` binds it to memory and to the threads of oneDNN.

Needs llvmlite (`pip install 'lamina[cpu]'`); without it no kernel is generated, and NumPy computes.
"""

from lamina.backends.cpu.loops import functions

__all__ = ["functions"]
