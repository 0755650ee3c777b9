"""Quantized convolutions and products."""
