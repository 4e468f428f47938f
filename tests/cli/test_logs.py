"""A log line may contain what a stranger chose; it stays one line of bounded length."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.cli.log_output import MAX_LINE, MAX_TRACE, LogFormat, LogLevel, log_to, one_line

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


@pytest.mark.parametrize("form", LogFormat)
def test_an_error_of_the_web_framework_is_one_line(form: LogFormat) -> None:
    stream = io.StringIO()
    log_to(stream, form, framework_traces=False)
    for name in ("nicegui", "uvicorn.error", "penstock.console"):
        try:
            raise TimeoutError("JavaScript did not respond within 1.0 s")
        except TimeoutError as error:
            logging.getLogger(name).exception(error)
    lines = stream.getvalue().splitlines()
    trace = [line for line in lines[2:] if "Traceback" in line]
    assert "JavaScript did not respond within 1.0 s (TimeoutError at " in lines[0]
    assert "JavaScript did not respond" in lines[1]
    assert not any("Traceback" in line for line in lines[:2])
    assert trace, "our own errors keep theirs"


def test_at_debug_the_web_framework_keeps_its_tracebacks() -> None:
    stream = io.StringIO()
    log_to(stream, level=LogLevel.DEBUG, framework_traces=False)
    try:
        raise TimeoutError("slow")
    except TimeoutError as error:
        logging.getLogger("nicegui").exception(error)
    assert "Traceback" in stream.getvalue()


UNCAUGHT = """
import threading, warnings
from penstock.cli.log_output import LogFormat, log_to, log_uncaught
log_to(form=LogFormat.JSON)
log_uncaught()
def fails():
    raise MemoryError("in a thread")
thread = threading.Thread(target=fails, name="some-thread")
thread.start()
thread.join()
warnings.warn("take care")
raise MemoryError("in the main one")
"""


def test_what_nothing_caught_has_the_format_of_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    thread, warning, last = map(json.loads, done.stderr.splitlines())
    assert thread["message"] == "an unexpected error ended the thread some-thread"
    assert "MemoryError: in a thread" in thread["trace"]
    assert "take care" in warning["message"]
    assert (last["level"], "in the main one" in last["trace"]) == ("critical", True)


def test_ordinary_text_stays_as_it_is() -> None:
    assert one_line("topic 订单 of group é: 5 %") == "topic 订单 of group é: 5 %"
    assert one_line("x" * (MAX_LINE + 7)) == "x" * MAX_LINE + "… (7 more characters)"
