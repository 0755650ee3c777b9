"""Functions of functions: derivatives, batches of calls, gradients of one's own, recomputation."""
