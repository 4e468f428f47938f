"""OpenTelemetry spans for the broker's requests and the pipeline's jobs.

Penstock uses only `opentelemetry-api`. A user configures the exporter before Penstock starts, for example with
`opentelemetry-instrument penstock serve`, because a broker or job asks for its tracer once, at its start. If the
package is missing or no exporter is configured, `find_tracer` returns None, and spans cost nothing. Thread-safe.
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
"""The message properties that carry the trace context. The names are W3C's."""
_API: Final = "opentelemetry.trace"
_PROVIDER: Final = "OTEL_PYTHON_TRACER_PROVIDER"


def find_tracer(part: str) -> Tracer | None:
    """Returns the tracer for a part of Penstock, such as `pipeline`, or None if spans are not recorded."""
    if _API not in sys.modules and _PROVIDER not in os.environ:
        return None  # a configured exporter has already imported the package, so do not import it here
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(f"penstock.{part}", __version__)


def context_of(properties: Mapping[str, str]) -> Context:
    """Returns the trace context in a message's properties."""
    from opentelemetry.propagate import extract

    return extract({name: properties[name] for name in TRACE_PROPERTIES if name in properties})


@contextmanager
def job_span(job: str, **attributes: str) -> Iterator[None]:
    """Records a span around the block of a pipeline job. The environment variable TRACEPARENT gives its parent."""
    tracer = find_tracer("pipeline")
    if tracer is None:
        yield
        return
    parent = context_of({name: os.environ[name.upper()] for name in TRACE_PROPERTIES if name.upper() in os.environ})
    with tracer.start_as_current_span(f"penstock {job}", parent, attributes={"penstock.job": job, **attributes}):
        yield
