"""Listening sockets: whoever holds one owns its port."""

from __future__ import annotations

import socket

import pytest

from trainworks.errors import PortInUseError
from trainworks.host.network import LOOPBACK, listen


def test_port_0_takes_a_free_one() -> None:
    with listen() as first, listen() as second:
        assert 0 < first.getsockname()[1] != second.getsockname()[1] > 0


def test_a_wanted_port_is_taken() -> None:
    with listen() as first:
        port = first.getsockname()[1]
    with listen(port) as again:
        assert again.getsockname() == (LOOPBACK, port)


def test_a_taken_port_is_refused_with_its_number() -> None:
    with listen() as held:
        port = held.getsockname()[1]
        with pytest.raises(
            PortInUseError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"
        ) as refused:
            listen(port)
    assert refused.value.hint == "set `cluster.rendezvous_port` to a free port, or to 0 for a free one"


def test_a_listener_can_be_reached() -> None:
    with listen() as server, socket.create_connection(server.getsockname(), timeout=5) as client:
        accepted, address = server.accept()
        accepted.close()
        assert address == client.getsockname()
