"""Floor 3: saved plans: kernels, addresses and weights as data, in one file, run without the planner.

A process that serves from such a file imports neither ops nor graphs nor backends, plans nothing and compiles
nothing.

file       one file: a header, bytes, and checksums over both
addresses  addresses before there is memory: a region and an offset
host       the steps of a CPU: primitives of oneDNN
gpu        the steps of a GPU: kernels as machine code, plans of cuDNN, products of cuBLASLt
player     memory, contexts and calls
"""
