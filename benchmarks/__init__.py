"""Speed, measured: each module answers one question and prints a table; `--json` keeps the figures."""
