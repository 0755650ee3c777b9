"""lamina.convert.torch."""
