"""Performance benchmarks: each module answers one question and prints a table; `--json` stores the figures."""
