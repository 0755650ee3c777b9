"""Own kernels as values: programs, arguments, indexing."""
