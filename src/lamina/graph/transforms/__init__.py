"""Function transformations: derivatives, vmap, custom gradients, rematerialization."""
