"""Collective operations between GPUs, by NCCL."""
