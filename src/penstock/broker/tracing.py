"""Tracing: an OpenTelemetry span for each send, pull and query, if spans are recorded; see `penstock.telemetry`.

A broker calls `start_tracing` once. If no tracer is configured, it returns None, and no handler is wrapped. Otherwise
the handlers are wrapped. The span of a send is a child of the trace that its message names (property `traceparent`). If
the send waits for the disk or a slave, its span ends with the reply. If a pull is held, its span ends when the pull
begins to wait, with the attribute `penstock.held`. Names follow OpenTelemetry's conventions for messaging where there
is one. Use everything here from the thread of the broker's loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.send_acks import PendingAck, PendingAcks
from penstock.broker.settings import SettingsInForce
from penstock.errors import PenstockError
from penstock.format.properties import split_properties
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pull import PullMessage, QueryMessage, ViewMessage
from penstock.protocol.headers.send import SendMessage, SendMessageV2
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Result
from penstock.store.message_store import MessageStore
from penstock.telemetry import TRACE_PROPERTIES, context_of, find_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_NOT_ERRORS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)
"""Response codes that are not errors: the message is stored, or there is no message to return."""


class _About(NamedTuple):
    """The parts of a request that its span shows."""

    operation: str
    topic: str
    attributes: dict[str, str | int]
    properties: str = ""


def start_tracing() -> Tracing | None:
    """Returns the tracing of a new broker; None if no tracer is configured."""
    tracer = find_tracer("broker")
    return None if tracer is None else Tracing(tracer)


class Tracing:
    """The spans of one broker."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: Span | None = None
        """The span of the request that is being handled, until `detach` or the end of the handler."""

    def pending_acks(self, store: MessageStore, settings: SettingsInForce) -> PendingAcks:
        return _TracedAcks(self, store, settings)

    def wrap(self, handlers: dict[int, Handler]) -> None:
        """Wraps the handlers of sends, pulls and queries in spans."""
        for code, read in _READ.items():
            if code in handlers:
                handlers[code] = self._traced(handlers[code], read)

    def detach(self) -> Span | None:
        """Returns the span of the request that is being handled, if any. The caller must end it."""
        span, self._open = self._open, None
        return span

    def _traced(self, handler: Handler, read: Callable[[Command], _About]) -> Handler:
        def traced(connection: Connection, command: Command) -> Result:
            span = self._open = self._begin(connection, command, read)
            try:
                result = handler(connection, command)
            except Exception as error:
                fail(span, error)
                raise
            finally:
                is_detached, self._open = self._open is None, None
            if result is None:
                if not is_detached:
                    if not command.is_oneway:
                        span.set_attribute("penstock.held", True)
                    end(span)
            elif isinstance(result, Command | bytes | tuple):
                end(span, result if isinstance(result, Command) else None)
            else:
                return _awaited(result, span)
            return result

        return traced

    def _begin(self, connection: Connection, command: Command, read: Callable[[Command], _About]) -> Span:
        from opentelemetry.trace import SpanKind

        try:
            about = read(command)
        except PenstockError:  # the handler will report this error
            about = _About("request", "", {})
        parent = None
        if any(name in about.properties for name in TRACE_PROPERTIES):
            parent = context_of(split_properties(about.properties))
        attributes: dict[str, str | int] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": about.operation,
            "client.address": connection.peer[0],
            **about.attributes,
        }
        if about.topic:
            attributes["messaging.destination.name"] = about.topic
        name = f"{about.operation} {about.topic}".rstrip()
        return self._tracer.start_span(name, parent, SpanKind.SERVER, attributes)


class _TracedAcks(PendingAcks):
    """Pending acks that end the span of each send with its reply."""

    def __init__(self, tracing: Tracing, store: MessageStore, settings: SettingsInForce) -> None:
        super().__init__(store, settings)
        self._tracing = tracing
        self._spans: dict[int, Span] = {}
        """Open spans by the `id` of the pending reply."""

    def add(self, connection: Connection, end_offset: int, reply: Command) -> None:
        span, before = self._tracing.detach(), len(self)
        super().add(connection, end_offset, reply)
        if span is not None and len(self) > before:
            self._spans[id(reply)] = span
        elif span is not None:  # the reply was sent at once
            end(span, reply)

    def _answer(self, pending: PendingAck) -> None:
        super()._answer(pending)
        span = self._spans.pop(id(pending.reply), None)
        if span is not None:
            end(span, pending.reply)


def end(span: Span, reply: Command | None = None) -> None:
    """Ends a span with the reply's code. Without a reply, the span counts as a success."""
    if reply is not None:
        span.set_attribute("penstock.response_code", int(reply.code))
        if reply.code not in _NOT_ERRORS:
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute("error.type", _name(reply.code))
            span.set_status(Status(StatusCode.ERROR, reply.remark))
    span.end()


def fail(span: Span, error: BaseException) -> None:
    """Ends a span with an error."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", _name(error.code) if isinstance(error, Refusal) else type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


async def _awaited(result: Awaitable[Command | None], span: Span) -> Command | None:
    try:
        reply = await result
    except BaseException as error:
        fail(span, error)
        raise
    end(span, reply)
    return reply


def _name(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)


def _sent(command: Command, kind: type[SendMessage]) -> _About:
    header = command.read(kind)
    attributes: dict[str, str | int] = {
        "messaging.operation.type": "send",
        "messaging.destination.partition.id": str(header.queue_id),
        "messaging.message.body.size": len(command.body),
    }
    return _About("send", header.topic, attributes, header.properties)


def _pulled(command: Command) -> _About:
    header = command.read(PullMessage)
    attributes: dict[str, str | int] = {
        "messaging.operation.type": "receive",
        "messaging.destination.partition.id": str(header.queue_id),
        "messaging.consumer.group.name": header.consumer_group,
        "penstock.queue_offset": header.queue_offset,
    }
    return _About("pull", header.topic, attributes)


def _queried(command: Command) -> _About:
    return _About("query", command.read(QueryMessage).topic, {})


def _viewed(command: Command) -> _About:
    return _About("view", "", {"penstock.physical_offset": command.read(ViewMessage).offset})


_READ: Final[dict[RequestCode, Callable[[Command], _About]]] = {
    RequestCode.SEND_MESSAGE: lambda command: _sent(command, SendMessage),
    RequestCode.SEND_MESSAGE_V2: lambda command: _sent(command, SendMessageV2),
    RequestCode.SEND_BATCH_MESSAGE: lambda command: _sent(command, SendMessageV2),
    RequestCode.PULL_MESSAGE: _pulled,
    RequestCode.LITE_PULL_MESSAGE: _pulled,
    RequestCode.QUERY_MESSAGE: _queried,
    RequestCode.VIEW_MESSAGE_BY_ID: _viewed,
}
