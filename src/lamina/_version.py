"""The version, for those below the public list."""

__version__ = "0.1.0"
