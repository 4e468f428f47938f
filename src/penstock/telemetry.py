"""OpenTelemetry spans for the broker's requests and the pipeline's jobs.

Penstock creates spans through `opentelemetry-api` only. The process that starts Penstock configures the exporter first,
for example with `opentelemetry-instrument penstock serve`: a broker or job asks for its tracer once, at its start. If
the package is missing or no exporter is configured, `find_tracer` returns None and messages cost nothing extra.
Thread-safe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

TRACE_PROPERTIES: Final = ("traceparent", "tracestate")
"""Message properties that carry the trace context, by W3C's names."""
_API: Final = "opentelemetry.trace"
_PROVIDER: Final = "OTEL_PYTHON_TRACER_PROVIDER"


def find_tracer(part: str) -> Tracer | None:
    """The tracer of a part of Penstock; None if spans are not recorded."""
    if _API not in sys.modules and _PROVIDER not in os.environ:
        return None  # a configured exporter has imported it already; do not import it for nothing
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(f"penstock.{part}", __version__)


def context_of(properties: Mapping[str, str]) -> Context:
    """The trace context in a message's properties."""
    from opentelemetry.propagate import extract

    return extract({name: properties[name] for name in TRACE_PROPERTIES if name in properties})


@contextmanager
def job_span(job: str, **attributes: str) -> Iterator[None]:
    """A span around a pipeline job; its parent is TRACEPARENT in the environment."""
    tracer = find_tracer("pipeline")
    if tracer is None:
        yield
        return
    parent = context_of({name: os.environ[name.upper()] for name in TRACE_PROPERTIES if name.upper() in os.environ})
    with tracer.start_as_current_span(f"penstock {job}", parent, attributes={"penstock.job": job, **attributes}):
        yield
