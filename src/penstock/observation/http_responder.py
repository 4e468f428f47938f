"""A small HTTP/1.1 responder for machines that watch a process: GET and HEAD, one request a connection, in a thread.

    responder = HttpResponder(listener, answer)
    responder.start()
    ...
    responder.stop()

The thread has an event loop of its own, so it answers while the process starts, recovers or hangs, and a slow reader
holds nothing else up. What strangers can do is limited: the number of connections, the bytes of a request, the bytes of
answers that they do not read, and the time from the accept to the end of the answer. There is no token, so the port
should be reachable only by those that may know the answers; at a loopback address the Host has to be an IP address or
localhost, against DNS rebinding. An error in `answer` is logged and answered with 500. If the thread ends, the log says
why and the process goes on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from penstock.remoting.sockets import listen

MAX_CONNECTIONS: Final = 64
MAX_REQUEST: Final = 8 << 10
"""Limit of a request in bytes, with its headers. A body is never read."""
MAX_UNSENT: Final = 64 << 20
"""Limit of all answers that wait for their readers, in bytes. A larger answer is sent if it is the only one."""
CONNECTION_S: Final = 20.0
"""Limit from the accept to the end of the answer, in seconds."""
_STOP_S: Final = 2.0
_END: Final = b"\r\n\r\n"
_logger = logging.getLogger("penstock.observation")


class HttpAnswer(NamedTuple):
    """The answer to a GET."""

    status: int
    body: bytes
    content_type: str

    @classmethod
    def of_json(cls, value: Any, status: int = HTTPStatus.OK) -> HttpAnswer:
        return cls(status, json.dumps(value).encode() + b"\n", "application/json")

    @classmethod
    def of_problem(cls, status: HTTPStatus) -> HttpAnswer:
        return cls(status, f"{status.phrase}\n".encode(), "text/plain; charset=utf-8")


Answer = Callable[[str], Awaitable[HttpAnswer | None]]
"""Returns the answer to a GET of a path; None if there is no such path. Called on the loop of that thread."""


class HttpResponder:
    """The thread and its connections. `listener` is bound; `stop` closes it."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener = listener
        self._answer = answer
        host, self.port = listener.getsockname()[:2]
        self._is_loopback = ipaddress.ip_address(host).is_loopback
        self._connections: set[asyncio.Transport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-observe", daemon=True)

    def start(self) -> None:
        """Returns when the port listens."""
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Closes the port and all connections. Returns when the thread has ended, or after two seconds."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(_STOP_S)
        self._listener.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except Exception:
            _logger.exception("the port for metrics and health has ended; a restart brings it back")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(self._connection, sock=self._listener)
        self._started.set()
        await self._end.wait()
        server.close()
        for transport in self._connections:
            transport.abort()
        await asyncio.sleep(0)  # aborted connections close in the next turn of the loop

    def _connection(self) -> _Request:
        return _Request(self)

    # -- what a connection asks for --------------------------------------------------------------------------

    def admit(self, transport: asyncio.Transport) -> bool:
        """Adds a new connection. Returns False if there are too many."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(transport)
        return True

    def release(self, transport: asyncio.Transport) -> None:
        self._connections.discard(transport)

    def has_room(self, size: int) -> bool:
        """Whether an answer of this size may be added to those that wait for their readers."""
        unsent = sum(transport.get_write_buffer_size() for transport in self._connections)
        return unsent == 0 or unsent + size <= MAX_UNSENT

    def respond(self, head: bytes, reply: Callable[[HttpAnswer, bool], object]) -> None:
        """Calls `reply` with the answer to a request, and whether its body is sent; now or later."""
        request = _Head.parse(head)
        if request is None:
            reply(HttpAnswer.of_problem(HTTPStatus.BAD_REQUEST), True)
        elif request.method not in ("GET", "HEAD"):
            reply(HttpAnswer.of_problem(HTTPStatus.METHOD_NOT_ALLOWED), True)
        elif self._is_loopback and not _is_local_name(request.host):
            reply(HttpAnswer.of_problem(HTTPStatus.MISDIRECTED_REQUEST), True)
        else:
            task = asyncio.ensure_future(self._later(request, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _later(self, request: _Head, reply: Callable[[HttpAnswer, bool], object]) -> None:
        try:
            answer = await self._answer(request.path) or HttpAnswer.of_problem(HTTPStatus.NOT_FOUND)
        except Exception:
            _logger.exception("%s could not be answered", request.path)
            answer = HttpAnswer.of_problem(HTTPStatus.INTERNAL_SERVER_ERROR)
        reply(answer, request.method == "GET")


@contextmanager
def answering(bound: socket.socket | None, answer: Answer) -> Iterator[str]:
    """Answers on a bound socket during the `with` block. Yields the URL; empty if the socket is None."""
    if bound is None:
        yield ""
        return
    host, port = bound.getsockname()[:2]
    responder = HttpResponder(listen(host, port, bound), answer)
    responder.start()
    try:
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        responder.stop()


class _Head(NamedTuple):
    """The parts of a request's head that matter here."""

    method: str
    path: str
    host: str

    @classmethod
    def parse(cls, head: bytes) -> _Head | None:
        """Returns None if it is not the head of an HTTP/1 request."""
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
            return None
        hosts = [line.partition(":")[2].strip() for line in lines if line[:5].lower() == "host:"]
        return cls(words[0], words[1].partition("?")[0], hosts[0] if hosts else "")


def _is_local_name(host: str) -> bool:
    """Whether a Host header is an IP address or localhost, with or without a port. HTTP/1.0 clients send none."""
    name = host.partition("]")[0][1:] if host.startswith("[") else host.rpartition(":")[0] or host
    if name in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Request(asyncio.Protocol):
    """One connection: it reads one request, writes one answer, and closes."""

    def __init__(self, responder: HttpResponder) -> None:
        self._responder = responder
        self._head = bytearray()
        self._answered = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._responder.admit(transport):
            self._deadline = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answered or self._transport is None:
            return
        self._head += data
        head, end, _ = self._head.partition(_END)
        if end and len(head) <= MAX_REQUEST:
            self._answered = True
            self._responder.respond(bytes(head), self._reply)
        elif len(self._head) > MAX_REQUEST:
            self._answered = True
            self._reply(HttpAnswer.of_problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True)

    def _reply(self, answer: HttpAnswer, with_body: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if with_body and not self._responder.has_room(len(answer.body)):
            answer = HttpAnswer.of_problem(HTTPStatus.SERVICE_UNAVAILABLE)
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (answer.body if with_body else b""))
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._responder.release(self._transport)
            self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
