"""A log line may contain what a stranger chose; it stays one line of bounded length."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from penstock.cli.logs import MAX_LINE, MAX_TRACE, LogFormat, log_to, one_line

log = logging.getLogger("penstock.test")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("form", LogFormat)
def test_a_name_with_line_breaks_forges_no_line(form: LogFormat) -> None:
    stream = io.StringIO()
    log_to(stream, form)
    log.info("created topic %s", "x\n2026-01-31T12:00:00.123Z INFO penstock: all is well\x1b[2J\u202e")
    [line] = stream.getvalue().splitlines()
    message = json.loads(line)["message"] if form is LogFormat.JSON else line
    assert message.endswith("created topic x\\n2026-01-31T12:00:00.123Z INFO penstock: all is well\\x1b[2J\\u202e")


@pytest.mark.parametrize("form", LogFormat)
def test_a_line_and_a_trace_have_a_limit(form: LogFormat) -> None:
    stream = io.StringIO()
    log_to(stream, form)
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        log.exception("request of %s failed", "x" * 1_000_000)
    assert len(stream.getvalue()) < MAX_LINE + MAX_TRACE + 300
    assert "more characters)" in stream.getvalue() or "\\u2026" in stream.getvalue()


def test_ordinary_text_stays_as_it_is() -> None:
    assert one_line("topic 订单 of group é: 5 %") == "topic 订单 of group é: 5 %"
    assert one_line("x" * (MAX_LINE + 7)) == "x" * MAX_LINE + "… (7 more characters)"
