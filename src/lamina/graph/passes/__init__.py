"""Rewrites of a graph into an equal, better one."""
