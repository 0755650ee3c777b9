"""The ops that Lamina defines."""

from lamina.ops.core import REGISTRY


def registered() -> list[str]:
    """The names of the ops of `lamina.ops` and of the backends, sorted. Others are registered by who imports or makes
    them: PyTorch's modules within converted networks, ops of one's own."""
    own = ("lamina.ops.", "lamina.backends.")
    return sorted(name for name, op in REGISTRY.items() if op.__module__.startswith(own))
