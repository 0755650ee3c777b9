"""The graph as a value: nodes, differentiation, files."""
