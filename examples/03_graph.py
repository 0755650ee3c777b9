"""A graph: the record of a program that runs on traced values, and its compilation.

Prints the recorded graph of a small function with its gradient, the table of kernels that the CPU backend
chose for it, and its results.
"""

import numpy as np

import lamina as lm
from lamina import ops


def program(x, w):
    """A loss and its gradient with respect to w."""
    loss = ops.mean(ops.square(ops.relu(x @ w)))
    return loss, lm.gradients(loss, [w])


x = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
w = np.array([[0.5], [1.0]], np.float32)
graph = lm.trace(program, x, w, names=["x", "w"])
print(graph)

run = lm.compile(graph, device="cpu")
print(lm.graph.profile(run, rounds=5).text())
loss, gradient = run(x, w)
print(f"loss {loss.item():.4f}, gradient {gradient.tolist()}")
