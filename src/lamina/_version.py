"""The version, for modules below the public list."""

__version__ = "0.1.0"
