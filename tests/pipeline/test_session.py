"""Interrupting a job on Spark: no Java stays behind, and a sentence says what is left instead of a traceback. And which
sessions stay for the next job.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.loopback import free_port
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.cli.verbs_on_spark import JobCall
from penstock.errors import BadSettings, Unreachable
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


class OneSession:
    """Stands for Spark in this process: starts a session, and stops it."""

    def __init__(self) -> None:
        self.runs = False
        self.asked: list[tuple[str, bool]] = []
        """The name and the lightness that each job asked for."""

    def start(self, app: str, master: str | None, conf: Mapping[str, str], *, light_java: bool) -> OneSession:
        self.runs = True
        self.asked.append((app, light_java))
        return self

    def stop(self) -> None:
        self.runs = False


def test_a_session_stays_for_the_next_job_only_if_asked_and_if_the_job_did_not_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = OneSession()
    monkeypatch.setattr(session, "start_session", spark.start)
    monkeypatch.setattr(session, "has_session", lambda: spark.runs)
    monkeypatch.setattr(session, "report_progress", lambda *given: nullcontext())
    plain, kept = JobCall(), JobCall(keep_session=True)
    with plain.session("usage", light_java=True):
        assert spark.runs
    assert not spark.runs
    for _ in range(2):
        with kept.session("usage", light_java=True):
            pass
        assert spark.runs
    with plain.session("usage"):
        pass
    assert spark.runs, "it existed before"
    with pytest.raises(BadSettings), kept.session("export"):
        raise BadSettings("no")
    assert not spark.runs
    assert spark.asked[:2] == [("penstock usage", True), ("penstock jobs", False)]
    with JobCall(keep_session=True, master="sc://localhost").session("usage"):
        pass
    assert not spark.runs, "a Connect server has its own session"


@pytest.mark.parametrize(
    "form", ["spark://127.0.0.1:{0}", "sc://127.0.0.1:{0}/;user_id=me", "spark://127.0.0.1:{0},127.0.0.1:{0}"]
)
def test_a_master_that_is_not_there_is_told_before_java_starts(form: str) -> None:
    master = form.format(free_port())
    with pytest.raises(Unreachable, match=r"no Spark answers at .*Connection refused.*check --master"):
        session.start_session("test", master)
