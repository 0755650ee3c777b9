"""Linear maps along axes, and sampling between elements: kernels and their planners."""
