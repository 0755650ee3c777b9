"""Listening sockets."""

import socket

import pytest

from lamina.runtime.ranks.listening import listening
from tests.helpers.rank_programs import check_world_and_pairs
from tests.helpers.ranks import run_ranks


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_loopback_address_admits_this_machine_alone(host: str) -> None:
    with listening(host) as found:
        assert found.getsockname()[0] == ("::1" if host == "::1" else "127.0.0.1")
        socket.create_connection((host, found.getsockname()[1]), 5.0).close()


@pytest.mark.parametrize("to", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_any_other_name_admits_both_kinds_of_addresses(to: str) -> None:
    with listening("node7") as found:
        socket.create_connection((to, found.getsockname()[1]), 5.0).close()


def test_without_ipv6_it_listens_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listening("") as found:
        assert found.family == socket.AF_INET
        with pytest.raises(OSError, match="in use"):
            listening("", found.getsockname()[1])


@needs_ipv6
@pytest.mark.feature("B032")
def test_ranks_meet_at_an_ipv6_address() -> None:
    assert run_ranks(check_world_and_pairs, 2, env={"MASTER_ADDR": "::1"}) == [[]] * 2
