"""Programs as users write them, which the type checkers read; `test_typing.py` runs the checkers."""
