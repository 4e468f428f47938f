"""OpenTelemetry's spans of a broker, recorded by the real SDK; and that there are none where nobody records."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.broker.tracing import start_tracing
from penstock.client import Message, MessageQueue
from penstock.client.sync import Producer, PullConsumer
from penstock.errors import Refused
from penstock.opentelemetry_spans import find_tracer, job_span
from penstock.testing import LocalBroker, broker

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SOON_S = 30.0


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Whoever asks for a tracer during the test records into this."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def until(look: Callable[[], ReadableSpan | None]) -> ReadableSpan:
    deadline = time.monotonic() + SOON_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, "there is no such span"
        time.sleep(0.005)
    return found


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The one span of a name; it ends a moment after the client has its answer."""
    return until(lambda: next((each for each in spans.get_finished_spans() if each.name == name), None))


def send(running: LocalBroker, **properties: str) -> MessageQueue:
    with Producer("PID", running.namesrv) as producer:
        return producer.send(Message("orders", b"two shirts", keys="order_1", properties=properties)).queue


def test_a_send_is_part_of_the_trace_that_its_message_names(spans: InMemorySpanExporter) -> None:
    with broker({"orders": 1}) as running:
        send(running, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
        span = named(spans, "send orders")
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert span.kind is trace.SpanKind.SERVER
    assert span.status.is_ok or span.status.is_unset
    told = dict(span.attributes or {})
    assert told["messaging.destination.name"] == "orders"
    assert told["messaging.message.body.size"] == len(b"two shirts")


def test_a_send_without_a_trace_begins_one(spans: InMemorySpanExporter) -> None:
    with broker({"orders": 1}) as running:
        send(running, traceparent="no trace at all")
        span = named(spans, "send orders")
    assert span.parent is None


def test_a_send_that_waits_for_the_disk_ends_with_its_answer(spans: InMemorySpanExporter) -> None:
    with broker({"orders": 1}, settings={"flushDiskType": "SYNC_FLUSH"}) as running:
        send(running)
        span = named(spans, "send orders")
    assert dict(span.attributes or {})["penstock.response_code"] == 0
    assert "penstock.held" not in (span.attributes or {})


def test_what_is_refused_is_an_error_with_its_code(spans: InMemorySpanExporter) -> None:
    with broker({"orders": 1}, settings={"autoCreateTopicEnable": "false"}) as running:
        queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")
        with Producer("PID", running.namesrv) as producer, running.admin() as admin:
            producer.send(Message("orders", b"x"), queue=queue)
            admin.topics.create("orders", queues=1, perm=4)
            with pytest.raises(Refused):
                producer.send(Message("orders", b"x"), queue=queue)
        span = until(lambda: next((each for each in spans.get_finished_spans() if not each.status.is_unset), None))
    assert span.status.status_code is trace.StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "NO_PERMISSION"


def test_pulls_and_queries_have_spans_by_the_conventions_names(spans: InMemorySpanExporter) -> None:
    with broker({"orders": 1}) as running:
        queue = send(running)
        running.settle()
        with PullConsumer("CID", running.namesrv) as consumer, running.admin() as admin:
            assert [each.body for each in consumer.pull(queue, 0).messages] == [b"two shirts"]
            [found] = admin.messages.by_key("orders", "order_1")
            admin.messages.by_id(found.offset_msg_id)
        pulled, queried = named(spans, "pull orders"), named(spans, "query orders")
        named(spans, "view")
    assert dict(pulled.attributes or {})["messaging.consumer.group.name"] == "CID"
    assert queried.end_time is not None
    known = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    told = {name for span in (pulled, queried) for name in span.attributes or {} if name.startswith("messaging.")}
    assert told <= known


def test_a_job_is_a_span_and_its_error_is_told(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE_ID}-{SPAN_ID}-01")
    with pytest.raises(ValueError), job_span("verify"):
        raise ValueError("a store that is none")
    span = named(spans, "penstock verify")
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert span.status.status_code is trace.StatusCode.ERROR


def test_where_nobody_records_no_handler_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_tracer("broker") is None
    assert start_tracing() is None
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    assert start_tracing() is None
    with job_span("verify"):
        pass


def test_where_the_package_is_missing_it_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert find_tracer("broker") is None
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert find_tracer("broker") is None
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    assert find_tracer("broker") is None
