"""Tracing: an OpenTelemetry span for each send, pull and query, if spans are recorded: `penstock.opentelemetry_spans`.

A broker calls `start_tracing` once. If no tracer is configured, it returns None, and no operation is wrapped. Otherwise
the tracing is a guard of the broker's core. The span of a send is a child of the trace that its message names (property
`traceparent`). If the send waits for the disk or a slave, its span ends with the outcome. If a pull is held, its span
ends when the pull begins to wait, with the attribute `penstock.held`. Names follow OpenTelemetry's conventions for
messaging where there is one. Use everything here from the thread of the broker's loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.operations_as_plain_calls import Call, Client, Deferred, Operation
from penstock.format.properties import split_properties
from penstock.opentelemetry_spans import TRACE_PROPERTIES, context_of, find_tracer
from penstock.protocol.codes import SERVED, Refusal, ResponseCode
from penstock.protocol.headers.pull import PullMessage, QueryMessage, ViewMessage
from penstock.protocol.headers.send import SendMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class _About(NamedTuple):
    """The parts of a request that its span shows."""

    topic: str
    attributes: dict[str, str | int]
    properties: str = ""


def start_tracing() -> Tracing | None:
    """Returns the tracing of a new broker; None if no tracer is configured."""
    tracer = find_tracer("broker")
    return None if tracer is None else Tracing(tracer)


class Tracing:
    """The spans of one broker. An instance is a guard of its core."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, operation: Operation) -> Call:
        """Returns the call of an operation, wrapped in a span if it is a send, a pull or a query."""
        describe, call = _DESCRIBE.get(operation.name), operation.call
        if describe is None:
            return call

        def traced(client: Client, request: Any, *rest: Any) -> Any:
            span = self._begin(client, operation.name, describe(request, *rest))
            try:
                outcome = call(client, request, *rest)
            except Exception as error:
                end(span, error)
                raise
            if isawaitable(outcome):
                return _awaited(span, outcome, operation)
            _finish(span, outcome, operation)
            return outcome

        return traced

    def _begin(self, client: Client, operation: str, about: _About) -> Span:
        from opentelemetry.trace import SpanKind

        parent = None
        if any(name in about.properties for name in TRACE_PROPERTIES):
            parent = context_of(split_properties(about.properties))
        attributes: dict[str, str | int] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": operation,
            "client.address": client.peer[0],
            **about.attributes,
        }
        if about.topic:
            attributes["messaging.destination.name"] = about.topic
        return self._tracer.start_span(f"{operation} {about.topic}".rstrip(), parent, SpanKind.SERVER, attributes)


def end(span: Span, outcome: Any) -> None:
    """Ends a span with the code of an outcome, or with an error. An outcome without a code is a success."""
    if not isinstance(outcome, Exception):
        code = getattr(outcome, "code", ResponseCode.SUCCESS)
        span.set_attribute("penstock.response_code", int(code))
        if code not in SERVED:
            _set_error(span, code.name, outcome.remark)
    else:
        name = outcome.code.name if isinstance(outcome, Refusal) else type(outcome).__name__
        _set_error(span, name, str(outcome))
    span.end()


def _set_error(span: Span, name: str, why: str | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, why))


def _finish(span: Span, outcome: Any, operation: Operation) -> None:
    """Ends a span with its outcome; that of a send which waits, later; that of a held pull at once."""
    if not isinstance(outcome, Deferred):
        end(span, outcome)
    elif operation.writes:
        outcome.then(partial(end, span))
    else:
        span.set_attribute("penstock.held", True)
        span.end()


async def _awaited(span: Span, outcome: Awaitable[Any], operation: Operation) -> Any:
    try:
        found = await outcome
    except Exception as error:
        end(span, error)
        raise
    except BaseException:  # the server stops
        span.end()
        raise
    _finish(span, found, operation)
    return found


def _sent(request: SendMessage, body: bytes, *_: bool) -> _About:
    attributes: dict[str, str | int] = {
        "messaging.operation.type": "send",
        "messaging.destination.partition.id": str(request.queue_id),
        "messaging.message.body.size": len(body),
    }
    return _About(request.topic, attributes, request.properties)


def _pulled(request: PullMessage) -> _About:
    attributes: dict[str, str | int] = {
        "messaging.operation.type": "receive",
        "messaging.destination.partition.id": str(request.queue_id),
        "messaging.consumer.group.name": request.consumer_group,
        "penstock.queue_offset": request.queue_offset,
    }
    return _About(request.topic, attributes)


def _queried(request: QueryMessage) -> _About:
    return _About(request.topic, {})


def _viewed(request: ViewMessage) -> _About:
    return _About("", {"penstock.physical_offset": request.offset})


_DESCRIBE: Final[dict[str, Callable[..., _About]]] = {
    "send": _sent,
    "pull": _pulled,
    "query": _queried,
    "view": _viewed,
}
