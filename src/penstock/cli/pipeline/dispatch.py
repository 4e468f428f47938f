"""`penstock pipeline dispatch`: a streaming job that builds queues and index of a store with dispatch=external."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.options import AsJson, option
from penstock.cli.output import flush, write, write_json, write_note
from penstock.cli.spark import Confs, Master, parse_confs
from penstock.errors import BadSettings, PenstockError
from penstock.human_units import format_size
from penstock.store.external_dispatch.coordination import require_agreement
from penstock.store.file_io import Files
from penstock.store.layout import Layout
from penstock.store.readonly.store_folder import StoreFolder

if TYPE_CHECKING:
    from penstock.pipeline.jobs.dispatch import DispatchJob, DispatchReport

_POLL_S = 0.5
_NOTE_INTERVAL_S = 10.0


def dispatch(
    store: Annotated[Path, option("--store", "DIR", "The directory of a store with dispatch=external.")],
    once: Annotated[bool, typer.Option("--once", help="Stop when everything published so far is built.")] = False,
    trigger: Annotated[
        float, option("--trigger", "SECONDS", "Time from the start of one batch to the next; default: none.")
    ] = 0.0,
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
) -> None:
    """Build the queues of a store with dispatch=external.

    Builds queues and index continuously, as a stream. Runs until SIGTERM or Ctrl-C, beside the store's broker, and may
    be killed and restarted at any time. One job per store; it reads its settings from the store. Exit status 0:
    stopped; 2: could not run, or a write failed.

    Examples:

    \b
      penstock serve --store data/store --set dispatch=external
      penstock pipeline dispatch --store data/store
      penstock pipeline dispatch --store data/store --once --json
    """
    from penstock.pipeline.jobs.dispatch import dispatch as start
    from penstock.pipeline.jobs.dispatch import end_session
    from penstock.pipeline.session import has_session, start_session

    if trigger < 0 or (once and trigger):
        raise BadSettings("--trigger must be 0 or more seconds, and not together with --once")
    root = StoreFolder.find(store, None, None).layout.root
    require_agreement(Files(), Layout(root, root / "commitlog"))  # raises before Spark starts
    existed = has_session()
    spark = start_session("penstock dispatch", master, parse_confs(conf))
    try:
        with _StopSignals() as stopped, start(spark, store, once=once, trigger=trigger) as job:
            if not as_json:
                write_note(f"{store}: dispatching from offset {job.report().start}")
            _watch(job, stopped, quiet=as_json)
        _report(job.report(), as_json)
    finally:
        if not existed:
            end_session(spark)


class _StopSignals:
    """Becomes truthy after SIGTERM or SIGINT. A second signal ends the process at once."""

    def __init__(self) -> None:
        self._received = False
        self._previous: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self._received

    def _handle(self, number: int, frame: object) -> None:
        if self._received:
            os._exit(128 + number)
        self._received = True

    def __enter__(self) -> _StopSignals:
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _watch(job: DispatchJob, stopped: _StopSignals, *, quiet: bool) -> None:
    noted = time.monotonic()
    position = -1
    while not stopped:
        try:
            if job.wait(_POLL_S):
                return
        except PenstockError:
            if stopped:  # the signal stopped Spark, too
                return
            raise
        report = job.report()
        if not quiet and time.monotonic() - noted >= _NOTE_INTERVAL_S and report.position != position:
            noted, position = time.monotonic(), report.position
            write_note(f"complete up to {position}, {format_size(report.behind)} behind")


def _report(report: DispatchReport, as_json: bool) -> None:
    if as_json:
        write_json({**msgspec.to_builtins(report), "behind": report.behind})
    else:
        built = format_size(report.position - report.start)
        write(f"queues and index are complete up to {report.position}: {built} in {report.batches} batches\n")
    flush()
