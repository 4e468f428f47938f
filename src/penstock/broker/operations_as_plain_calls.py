"""The broker's core: operations as plain calls, and the guards around all of them.

An operation takes a client and a typed request. It returns an outcome, an awaitable of one, or a `Deferred` one. It
raises `Refusal` to refuse. It knows neither connections nor commands: `broker/remoting` turns frames into requests and
outcomes into frames, and a second protocol would be a second room beside it. The requests are the structs of
`protocol.headers` and `protocol.bodies`; the outcomes are structs of `protocol.bodies`, or values that the module of
the operation defines.

`Core` wraps each operation once, when it is added, in the guards that apply to it: access rights, tracing, and whether
this broker accepts messages at all. An operation that needs no guard is called directly. Whether a client may ask for
an operation at all, as for administration, does not depend on the request: that is the operation's `admit`, which the
protocol's adapter calls before it reads the request. So the bytes of a client that may not ask are never parsed. Use
everything here from the loop's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.fields import Fields

log = logging.getLogger("penstock.broker")
T = TypeVar("T")


class Client(Protocol):
    """A connected client, as the core sees it. Compared and hashed by identity. `remoting.Connection` is one."""

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the client."""

    @property
    def local(self) -> tuple[str, int]:
        """Host and port of the broker, as the client's connection reached it."""

    @property
    def is_loopback(self) -> bool: ...

    @property
    def secure(self) -> bool:
        """Whether the connection uses TLS."""

    @property
    def closed(self) -> bool: ...

    @property
    def is_behind(self) -> bool:
        """Whether so many replies wait for the client to read them that no further ones should be made."""

    on_close: list[Callable[[Any], None]]
    """Each callback is called once with the client, after either side has closed the connection."""

    account: str | None
    """The access key of the current request, which its signature or the client's address proved; None without one."""

    def __hash__(self) -> int: ...

    def close(self) -> None:
        """Closes the connection."""


def host_text(host: str, port: int) -> str:
    """Returns `ip:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ClientHosts(dict[Client, str]):
    """`ip:port` of each client. An entry is computed once and removed when the client's connection closes."""

    def __missing__(self, client: Client) -> str:
        text = self[client] = host_text(*client.peer)
        client.on_close.append(self._remove)
        return text

    def _remove(self, client: Client) -> None:
        self.pop(client, None)


class Answer(NamedTuple):
    """A client's answer to a request of the broker."""

    code: int
    remark: str | None
    body: bytes | memoryview
    arguments: Mapping[str, str] = {}


class ClientRequests(Protocol):
    """Sends requests of the broker to its clients."""

    def tell(self, client: Client, request: Fields, body: bytes | memoryview = b"") -> None:
        """Sends a request that gets no answer. Drops it if the client is gone, or a notice if the client is behind."""

    async def ask(self, client: Client, request: Fields, body: bytes | memoryview, timeout_s: float) -> Answer:
        """Sends a request and returns the answer. Raises PenstockError if none comes in time."""


class Deferred(Generic[T]):
    """An outcome that comes later, as of a pull that waits for a message. Needs no task and no turn of the loop.

    If the client closes its connection first, the outcome may never come.
    """

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: tuple[Callable[[T | Exception], object], ...] = ()

    def then(self, callback: Callable[[T | Exception], object]) -> None:
        """Calls `callback` with the outcome, or with the error of the operation. Call this before the outcome comes."""
        self._callbacks += (callback,)

    def settle(self, outcome: T | Exception) -> None:
        """Passes the outcome on. The module of the operation calls this, once. Logs a callback that raises."""
        for callback in self._callbacks:
            try:
                callback(outcome)
            except Exception:  # the caller may have more outcomes to settle
                log.exception("an outcome could not be passed on")


class Denied(Refusal):
    """A guard refused a call; the operation was not reached."""


Call = Callable[..., Any]
"""`call(client, request)`, or `call(client, request, body)` where the request has a body of its own."""


Admit = Callable[[Client], None]


class Operation(NamedTuple):
    """One thing that a broker does for its clients."""

    name: str
    """Two words at most, as in `send` or `create topic`: in spans, counters and log lines."""
    call: Call
    is_administration: bool = False
    """Whether ordinary clients do not ask for this: needs an administrator's account, or a client on this machine."""
    for_slaves: bool = False
    """Whether this broker's slaves may ask for this administration, too."""
    changes: bool = False
    """Whether an administrator changes something by it: such an act is logged, with who asked for it from where."""
    writes: bool = False
    """Whether it stores messages: refused by a slave, and while the broker stops."""
    admit: Admit | None = None
    """Raises Denied if a client may not ask for this; None if every client may. The core sets it."""


def administration(name: str, call: Call, *, for_slaves: bool = False, changes: bool = False) -> Operation:
    return Operation(name, call, is_administration=True, for_slaves=for_slaves, changes=changes)


Guard = Callable[[Operation], Call]
"""Returns the call of an operation, wrapped; or the same call if the guard does not apply to it."""
Admission = Callable[[Operation], Admit | None]
"""Returns the `admit` of an operation."""


class WriteGuard:
    """A guard that refuses operations which store messages while anything has closed it.

    It is asked before an operation begins. One that waits before it stores asks again with `check`.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self.why_not = ""
        """Why messages are refused, for clients; empty if they are accepted."""

    def close(self, what: str, why: str) -> None:
        """Refuses messages because of `what`, until `open` with the same."""
        self._reasons[what] = why
        self.why_not = next(iter(self._reasons.values()))

    def open(self, what: str) -> None:
        """Accepts messages, unless something else refuses them."""
        self._reasons.pop(what, None)
        self.why_not = next(iter(self._reasons.values()), "")

    def check(self) -> None:
        """Raises Denied while messages are refused."""
        if self.why_not:
            raise Denied(ResponseCode.SERVICE_NOT_AVAILABLE, self.why_not)

    def __call__(self, operation: Operation) -> Call:
        if not operation.writes:
            return operation.call
        call, check = operation.call, self.check

        def guarded(*arguments: Any) -> Any:
            check()
            return call(*arguments)

        return guarded


class Core:
    """All operations of a broker by name."""

    def __init__(self, admission: Admission, guards: Iterable[Guard] = ()) -> None:
        """`guards` are applied in order, so the last one is the outermost."""
        self._admission = admission
        self._guards = tuple(guards)
        self._operations: dict[str, Operation] = {}

    def add(self, *operations: Operation) -> None:
        """Adds operations. No two may have the same name."""
        for operation in operations:
            assert operation.name not in self._operations, f"there are two operations {operation.name!r}"
            for guard in self._guards:
                operation = operation._replace(call=guard(operation))
            self._operations[operation.name] = operation._replace(admit=self._admission(operation))

    def find(self, name: str) -> Operation:
        """Returns an operation with its guarded call."""
        return self._operations[name]

    @property
    def operations(self) -> Iterable[Operation]:
        return self._operations.values()
