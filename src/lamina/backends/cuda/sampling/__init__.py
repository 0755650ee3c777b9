"""Linear maps along axes, and points between the elements: kernels and their planners."""
