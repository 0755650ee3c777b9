"""Listening sockets for ranks, which connect by IPv4 or IPv6."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address


def listening(host: str, port: int = 0) -> socket.socket:
    """A listening socket at a port; 0 means any free one.

    host: the address by which the ranks know this machine: "localhost" and loopback addresses admit connections of
        this machine alone, any other all that reach it, by IPv4 and by IPv6 where the system has both.
    Raises OSError if the port is taken.
    """
    with suppress(ValueError):  # a name
        here = ip_address("127.0.0.1" if host == "localhost" else host)
        if here.is_loopback:
            family = socket.AF_INET6 if here.version == 6 else socket.AF_INET
            return socket.create_server((str(here), port), family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)
