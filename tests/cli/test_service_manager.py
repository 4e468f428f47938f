"""What a service manager is told over its socket, and that nothing depends on it."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from penstock.cli.service_manager import ServiceManager


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_reach_the_socket_that_the_environment_names(tmp_path: Path, abstract: bool) -> None:
    address = f"@penstock-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0") if abstract else address)
        manager.settimeout(30)
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
        with closing(ServiceManager(environment)) as told:
            assert environment == {}, "children do not speak for the broker"
            assert told.alive_every_s == 30.0
            told.starting("walking the log: 25 %")
            told.starting("walking the log: 25 %")
            told.ready("serving at\nREADY=0")
            told.alive()
            told.stopping()
        assert [manager.recv(4096) for _ in range(4)] == [
            b"STATUS=walking the log: 25 %",
            b"READY=1\nSTATUS=serving at READY=0",
            b"WATCHDOG=1",
            b"STOPPING=1\nSTATUS=stopping",
        ]


def test_without_a_manager_nothing_is_sent() -> None:
    with closing(ServiceManager({})) as told:
        assert told.alive_every_s is None
        told.ready("serving")


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
)
def test_the_watchdog_is_asked_for_by_a_number_and_for_this_process(watchdog: dict[str, str], tmp_path: Path) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nothing"), **watchdog})) as told:
        assert told.alive_every_s is None
        told.ready("a socket that is not there stops nothing")
