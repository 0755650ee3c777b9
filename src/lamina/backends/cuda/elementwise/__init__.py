"""Elementwise chains, casts, shapes, reductions, softmax, losses and random numbers."""
