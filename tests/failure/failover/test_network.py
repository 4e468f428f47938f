"""Links between machines are cut and slowed as the nemeses say: silently, and one way if they like."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.failover.network import HERE, Network, network
from support.loopback import free_port

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    connection = server.accept()[0]
    while data := connection.recv(100):
        connection.sendall(data)
"""


@pytest.fixture
def machines() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def echo(machines: Network) -> Iterator[tuple[str, int]]:
    """A server on the machine `far` that sends back what it gets."""
    far, port = machines.add("far"), free_port()
    command = [*far.within, sys.executable, "-c", ECHO, far.address, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield far.address, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answers(connection: socket.socket, word: bytes) -> bool:
    connection.sendall(word)
    got = b""
    try:
        while not got.endswith(word):
            got += connection.recv(100)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("sender", "receiver"), [(HERE, "far"), ("far", HERE)])
def test_a_cut_link_is_silent_and_works_again_when_mended(
    machines: Network, echo: tuple[str, int], sender: str, receiver: str
) -> None:
    with socket.create_connection(echo, 10) as connection:
        assert answers(connection, b"one")
        machines.cut(sender, receiver)
        connection.settimeout(0.4)
        assert not answers(connection, b"two")
        with pytest.raises(TimeoutError):
            socket.create_connection(echo, 0.3)
        machines.mend(sender, receiver)
        connection.settimeout(30)
        assert answers(connection, b"three")


def test_a_cut_between_two_machines_leaves_the_others_alone(machines: Network, echo: tuple[str, int]) -> None:
    near = machines.add("near")
    ask = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.3)"

    def reaches() -> bool:
        command = [*near.within, sys.executable, "-c", ask, echo[0], str(echo[1])]
        return subprocess.run(command, capture_output=True).returncode == 0

    assert reaches()
    machines.cut("far", "near")
    assert not reaches(), "the answer does not arrive"
    with socket.create_connection(echo, 10) as connection:
        assert answers(connection, b"one")
    machines.heal()
    assert reaches()


def test_a_slow_link_passes_everything(machines: Network, echo: tuple[str, int]) -> None:
    machines.slow("far")
    with socket.create_connection(echo, 10) as connection:
        assert answers(connection, b"one")
    machines.heal()
