"""From nodes to plans: layouts, memory, rematerialization, streams, cost."""
