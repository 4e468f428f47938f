"""Spans for OpenTelemetry, where somebody records them: the broker's requests, and the pipeline's jobs.

Penstock makes spans through the package `opentelemetry-api` alone. Whoever starts it decides where they go, as with
`opentelemetry-instrument penstock serve`, and has done so before a broker is made or a job begins: who asks for a
tracer asks once, then. Where the package is missing, or nobody records, there is none, and nothing is done per message.
Any thread may call.
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
"""Properties of a message that say which trace it belongs to, by W3C's names."""
_API: Final = "opentelemetry.trace"
_CHOSEN: Final = "OTEL_PYTHON_TRACER_PROVIDER"


def find_tracer(part: str) -> Tracer | None:
    """What makes the spans of a part of Penstock; None if nobody records them."""
    if _API not in sys.modules and _CHOSEN not in os.environ:
        return None  # whoever records has imported it before us; we need not
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(f"penstock.{part}", __version__)


def context_of(properties: Mapping[str, str]) -> Context:
    """The trace that a message belongs to, as its properties say."""
    from opentelemetry.propagate import extract

    return extract({name: properties[name] for name in TRACE_PROPERTIES if name in properties})


@contextmanager
def job_span(job: str, **attributes: str) -> Iterator[None]:
    """A span around a job of the pipeline; a child of the one that TRACEPARENT in the environment names."""
    tracer = find_tracer("pipeline")
    if tracer is None:
        yield
        return
    around = context_of({name: os.environ[name.upper()] for name in TRACE_PROPERTIES if name.upper() in os.environ})
    with tracer.start_as_current_span(f"penstock {job}", around, attributes={"penstock.job": job, **attributes}):
        yield
