"""Interrupting a job on Spark: no Java stays behind, and a sentence says what is left instead of a traceback."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.pipeline import session
from penstock.pipeline.session import quiet_interrupts


class InterruptedStart:
    """A builder of sessions whose Java has just been started when Ctrl-C is pressed."""

    def __init__(self) -> None:
        self.java: subprocess.Popen[bytes] | None = None

    def getOrCreate(self) -> None:  # noqa: N802
        self.java = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        raise KeyboardInterrupt


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell a process its children")
def test_a_java_that_is_interrupted_while_it_starts_does_not_stay() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        start = InterruptedStart()
        with pytest.raises(KeyboardInterrupt):
            session._start(start, "local[1]")  # type: ignore[arg-type]
        assert start.java is not None
        with start.java as java:
            assert java.wait(timeout=60) == -signal.SIGTERM
        assert other.poll() is None, "what was there before is none of its business"
        other.communicate(b"\n")


@pytest.mark.parametrize(
    ("job", "left"), [(["usage"], "nothing was changed"), (["export", "--to", "out"], "the same command resumes")]
)
def test_an_interrupted_job_says_what_it_leaves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    job: list[str],
    left: str,
) -> None:
    def interrupted(*given: object, **options: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")  # as py4j does
            raise ConnectionError("Java is gone, so nothing can be put in order") from None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "start_session", interrupted)
    with StoreHome(tmp_path / "store").open():
        pass
    assert main(["pipeline", job[0], "--store", "store", *job[1:]]) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"penstock: {job[0]}: interrupted; {shown.err.partition('; ')[2]}"
    assert left in shown.err
    assert not caplog.records


class Java:
    """Whatever is called is noted by its name, and by which thread."""

    def __init__(self, called: list[tuple[str, bool]], name: str = "") -> None:
        self._called, self._name = called, name

    def __getattr__(self, name: str) -> Java:
        return Java(self._called, name)

    def __call__(self, *given: object) -> None:
        self._called.append((self._name, threading.current_thread() is threading.main_thread()))


def test_the_first_interrupt_has_spark_be_silent_and_the_handler_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before, level = signal.getsignal(signal.SIGINT), logging.getLogger("py4j").level
    called: list[tuple[str, bool]] = []
    monkeypatch.setattr("pyspark.SparkContext._gateway", Java(called))
    try:
        with pytest.raises(KeyboardInterrupt), quiet_interrupts():
            signal.raise_signal(signal.SIGINT)
        silenced = {("setRootLevel", False), ("setErr", False)}
        assert silenced <= set(called), "by another thread: this one's connection is in use"
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        logging.getLogger("py4j").setLevel(level)
