"""`penstock pipeline dispatch`: a streaming job that builds queues and index of a store with dispatch=external.

Its log on stderr has times, like a broker's. A service manager learns when the job builds (`cli.service_manager`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock.cli.log_output import LogFormat, LogFormatOption, LogLevel, errors_as_log, logging_to_stderr
from penstock.cli.options import AsJson, option
from penstock.cli.output import flush, write, write_json
from penstock.cli.service_manager import ServiceManager
from penstock.cli.spark_output import spark_output_as_log
from penstock.cli.verbs_on_spark import Confs, Master, parse_confs
from penstock.errors import BadSettings, PenstockError
from penstock.human_units import format_size
from penstock.store.external_dispatch.files_shared_with_job import require_agreement
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.readonly.store_folder import StoreFolder

if TYPE_CHECKING:
    from penstock.pipeline.jobs.dispatch import DispatchJob, DispatchReport

log = logging.getLogger("penstock.pipeline")

_POLL_S: Final = 0.5
_NOTE_INTERVAL_S: Final = 10.0
ALONE_S: Final = 5.0
"""With --once, Spark is started if the driver has not built everything by itself within so many seconds."""
NO_PROGRESS_S: Final = 30.0
"""After so many seconds without progress the log says so, and again after as many."""


def dispatch(
    store: Annotated[Path, option("--store", "DIR", "The directory of a store with dispatch=external.")],
    once: Annotated[bool, typer.Option("--once", help="Stop when everything published so far is built.")] = False,
    trigger: Annotated[
        float, option("--trigger", "SECONDS", "Time from the start of one batch to the next; default: none.")
    ] = 0.0,
    as_json: AsJson = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    master: Master = None,
    conf: Confs = None,
) -> None:
    """Build the queues of a store with dispatch=external.

    Builds queues and index continuously, as a stream. Runs until SIGTERM or Ctrl-C, beside the store's broker, and may
    be killed and restarted at any time. One job per store; it reads its settings from the store. It builds by itself
    while Spark starts. Exit status 0: stopped; 2: could not run, or a write failed.

    Examples:

    \b
      penstock serve --store data/store --set dispatch=external
      penstock pipeline dispatch --store data/store
      penstock pipeline dispatch --store data/store --once --json
    """
    from penstock.pipeline.jobs.dispatch import CONNECT_REFUSED, DispatchJob
    from penstock.pipeline.session import check_master, has_connect_session

    if trigger < 0 or (once and trigger):
        raise BadSettings("--trigger must be 0 or more seconds, and not together with --once")
    if (master or "").startswith("sc://") or has_connect_session():
        raise BadSettings(CONNECT_REFUSED)
    pairs = parse_confs(conf)
    root = StoreFolder.find(store, None, None).layout.root
    require_agreement(Files(), Layout(root, root / "commitlog"))
    check_master(master or "")
    level = LogLevel.WARNING if as_json else LogLevel.INFO
    signals = _StopSignals()
    with (
        signals.noted(),  # also between the blocks that handle them otherwise
        logging_to_stderr(log_format, level),
        errors_as_log(log_format),
        closing(ServiceManager()) as manager,
    ):
        try:
            with signals.raised():
                job = DispatchJob.open(root, once=once, trigger=trigger, on_wait=None if once else _Waiting(manager))
        except KeyboardInterrupt:
            if not signals:
                raise
            return
        with job:
            log.info("%s: dispatching from offset %d", root, job.report().start)
            manager.ready(f"dispatching {root}")
            _run(job, signals, master, pairs, once=once)
            manager.stopping()
        _report(job.report(), as_json)


class _Waiting:
    """Says that the job waits for the store."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager

    def __call__(self, reason: str) -> None:
        log.warning("waiting for the store: %s", reason)
        self._manager.ready(f"waiting for the store: {reason}")


def _run(job: DispatchJob, signals: _StopSignals, master: str | None, conf: dict[str, str], *, once: bool) -> None:
    """Runs the job on Spark until it ends or a signal comes. With --once, Spark starts only if it is needed.

    A signal that comes while Spark starts is noted, and ends the job when it has: an exception out of a handler could
    be lost in a destructor of py4j's, and leave the lock of the logging module taken.
    """
    from penstock.pipeline.jobs.dispatch import end_session
    from penstock.pipeline.session import has_session, start_session

    existed = has_session()
    if signals or (once and _is_built_alone(job, signals)):
        return
    try:
        with nullcontext() if existed else spark_output_as_log(log):
            spark = start_session("penstock dispatch", master, conf)
    except PenstockError:
        if signals:  # the signal ended Java, too
            return
        raise
    try:
        with signals.noted():  # Spark has set a handler of its own
            if not signals:
                job.run_on(spark)
                _watch(job, signals)
            job.close()
    finally:
        if not existed:
            end_session(spark)


def _is_built_alone(job: DispatchJob, signals: _StopSignals) -> bool:
    """Lets the driver build by itself for ALONE_S seconds. Returns whether the job has ended, or has to end."""
    deadline = time.monotonic() + ALONE_S
    while not signals and time.monotonic() < deadline:
        if job.wait(_POLL_S):
            return True
    return bool(signals)


class _StopSignals:
    """Becomes truthy after SIGTERM or SIGINT. A second signal ends the process at once."""

    def __init__(self) -> None:
        self._received = False

    def __bool__(self) -> bool:
        return self._received

    def raised(self) -> AbstractContextManager[None]:
        """In the block, a signal raises KeyboardInterrupt, and so does one that came before it."""
        return self._handling(raises=True)

    def noted(self) -> AbstractContextManager[None]:
        """In the block, a signal is only noted."""
        return self._handling(raises=False)

    @contextmanager
    def _handling(self, *, raises: bool) -> Iterator[None]:
        def handle(number: int, frame: object) -> None:
            if self._received:
                os._exit(128 + number)
            self._received = True
            if raises:
                raise KeyboardInterrupt

        previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            if raises and self._received:
                raise KeyboardInterrupt
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _watch(job: DispatchJob, signals: _StopSignals) -> None:
    """Waits for the end of the job, or for a signal. Logs progress, and that there is none."""
    noted = moved = time.monotonic()
    shown = position = job.report().position
    while not signals:
        try:
            if job.wait(_POLL_S):
                return
        except PenstockError:
            if signals:  # the signal stopped Spark, too
                return
            raise
        report, now = job.report(), time.monotonic()
        if report.position != position or not report.behind:
            position, moved = report.position, now
        if now - moved >= NO_PROGRESS_S and now - noted >= NO_PROGRESS_S:
            noted = now
            log.warning("no progress for %.0f s; %s behind", now - moved, format_size(report.behind))
        elif now - noted >= _NOTE_INTERVAL_S and position != shown:
            noted, shown = now, position
            log.info("complete up to %d, %s behind", position, format_size(report.behind))


def _report(report: DispatchReport, as_json: bool) -> None:
    if as_json:
        write_json({**msgspec.to_builtins(report), "behind": report.behind})
    else:
        built = format_size(report.position - report.start)
        write(f"queues and index are complete up to {report.position}: {built} in {report.batches} batches\n")
    flush()
