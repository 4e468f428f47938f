"""The HTTP responder over real sockets: what it answers, what it refuses, and that nobody can occupy it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.stores import eventually

from penstock.observation import http_responder
from penstock.observation.http_responder import MAX_CONNECTIONS, MAX_REQUEST, HttpAnswer, HttpResponder
from penstock.remoting.sockets import listen

Address = tuple[str, int]


async def answer(path: str) -> HttpAnswer | None:
    if path == "/fails":
        raise MemoryError("planted")
    return HttpAnswer.of_json({"path": path}) if path.startswith("/known") else None


@pytest.fixture
def responder() -> Iterator[Address]:
    listener = listen("127.0.0.1", 0)
    running = HttpResponder(listener, answer)
    running.start()
    yield "127.0.0.1", running.port
    running.stop()


def ask(address: Address, request: bytes) -> bytes:
    """The whole answer: the responder closes each connection."""
    with socket.create_connection(address, 30) as connection:
        connection.sendall(request)
        found = b""
        while data := connection.recv(1 << 16):
            found += data
    return found


def get(address: Address, path: str, host: str = "127.0.0.1", method: str = "GET") -> bytes:
    return ask(address, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def test_a_get_is_answered_and_the_connection_closed(responder: Address) -> None:
    head, _, body = get(responder, "/known?x=1").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 19\r\n" in head
    assert body == b'{"path": "/known"}\n'
    head, _, body = get(responder, "/known", method="HEAD").partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"")


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"GET /other HTTP/1.1\r\nHost: localhost:10913\r\n\r\n", 404),
        (b"POST /known HTTP/1.1\r\nHost: [::1]:10913\r\n\r\n", 405),
        (b"GET /known HTTP/1.1\r\nHost: evil.example:10913\r\n\r\n", 421),
        (b"GET known HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET /known HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST, 431),
    ],
)
def test_what_it_does_not_answer(responder: Address, request_bytes: bytes, expected: int) -> None:
    assert status(ask(responder, request_bytes)) == expected


def test_an_error_is_answered_logged_and_the_next_one_works(
    responder: Address, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert status(get(responder, "/fails")) == 500
    assert "/fails could not be answered" in caplog.text
    assert status(get(responder, "/known")) == 200


def test_silent_connections_have_an_end_and_a_number(responder: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_responder, "CONNECTION_S", 0.2)
    silent = [socket.create_connection(responder, 30) for _ in range(MAX_CONNECTIONS)]
    try:
        assert all(connection.recv(1) == b"" for connection in silent)
    finally:
        for connection in silent:
            connection.close()
    assert status(get(responder, "/known")) == 200


def test_one_connection_too_many_is_closed_at_once(responder: Address) -> None:
    silent = [socket.create_connection(responder, 30) for _ in range(MAX_CONNECTIONS)]
    try:
        with socket.create_connection(responder, 30) as extra, suppress(ConnectionResetError):
            assert extra.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()


def test_answers_that_are_not_read_have_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_responder, "MAX_UNSENT", 1 << 20)

    async def large(path: str) -> HttpAnswer | None:
        return HttpAnswer(200, bytes(32 << 20), "text/plain")

    running = HttpResponder(listen("127.0.0.1", 0), large)
    running.start()
    address = "127.0.0.1", running.port
    request = b"GET / HTTP/1.1\r\n\r\n"
    with socket.create_connection(address, 30) as slow:
        slow.sendall(request)
        assert slow.recv(1) == b"H"  # it is being answered, and does not read on
        assert status(ask(address, request)) == 503, "the memory for answers is taken"
    eventually(lambda: status(ask(address, request)) == 200, "it is not free again")
    running.stop()


def test_when_its_thread_ends_the_log_says_so_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(self: HttpResponder) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(HttpResponder, "_serve", fails)
    ended = HttpResponder(listen("127.0.0.1", 0), answer)
    with caplog.at_level(logging.ERROR):
        ended.start()
        ended._thread.join(30)
    ended.stop()
    assert "the port for metrics and health has ended" in caplog.text


def test_a_stop_ends_the_thread_though_a_client_waits() -> None:
    asked = threading.Event()

    async def hangs(path: str) -> HttpAnswer | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    running = HttpResponder(listen("127.0.0.1", 0), hangs)
    running.start()
    with socket.create_connection(("127.0.0.1", running.port), 30) as connection:
        connection.sendall(b"GET /known HTTP/1.1\r\n\r\n")
        assert asked.wait(30)
        running.stop()
        assert not running._thread.is_alive()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert "penstock-observe" not in {thread.name for thread in threading.enumerate()}
