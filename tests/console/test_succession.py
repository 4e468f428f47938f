"""A console without a broker ends when the broker's next start asks for it, and not for anybody else."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest

from penstock.console import end_previous_console
from penstock.console.end_previous_console import take_over, wait_for_successor


def test_without_a_console_there_is_nothing_to_take_over(tmp_path: Path) -> None:
    assert not take_over(tmp_path)


def test_it_ends_for_a_successor_of_the_same_store_only(tmp_path: Path) -> None:
    """The waiting side is a process, because its end is what the successor waits for."""
    listening, told = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        real = socket.socket.listen

        def listen(self: socket.socket, backlog: int) -> None:
            real(self, backlog)
            os.write(told, b"x")

        socket.socket.listen = listen  # type: ignore[method-assign]
        asyncio.run(wait_for_successor(tmp_path, 60))
        os._exit(0)
    os.read(listening, 1)
    assert not take_over(tmp_path / "another")
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert take_over(tmp_path)
    assert os.waitpid(child, 0)[1] == 0
    os.close(listening)
    os.close(told)


def test_another_user_cannot_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()

    def is_of_this_user(connection: socket.socket) -> bool:
        refused.set()
        return False

    monkeypatch.setattr(end_previous_console, "_is_of_this_user", is_of_this_user)

    async def wait() -> None:
        waiting = asyncio.create_task(wait_for_successor(tmp_path, 60))
        await asyncio.sleep(0)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(end_previous_console._name(tmp_path))
            assert await asyncio.to_thread(stranger.recv, 1) == b"", "hung up"
        assert refused.is_set()
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(wait())


@pytest.mark.parametrize("store", [None, Path("/somewhere")])
def test_it_does_not_wait_for_ever(store: Path | None) -> None:
    asyncio.run(wait_for_successor(store, 0.01))
