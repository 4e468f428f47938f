"""`penstock pipeline dispatch`: builds queues and index of a store that only appends, as a stream."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.options import AsJson, option
from penstock.cli.output import flush, say, write, write_json
from penstock.cli.spark import Confs, Master, parse_confs
from penstock.errors import BadSettings, PenstockError
from penstock.store.external.agreement import needed_terms
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.readonly.store_folder import StoreFolder
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.pipeline.jobs.dispatch import DispatchJob, DispatchReport

_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 10.0


def dispatch(
    store: Annotated[Path, option("--store", "DIR", "The folder of a store that is opened with dispatch=external.")],
    once: Annotated[bool, typer.Option("--once", help="End when everything published so far is built.")] = False,
    trigger: Annotated[
        float, option("--trigger", "SECONDS", "From the start of one batch to the next; at once unless given.")
    ] = 0.0,
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
) -> None:
    """Build queues and index of a store that only appends (dispatch=external), continuously.

    Runs until SIGTERM or Ctrl-C, beside the store's broker, and may be killed and started again at any moment. One job
    at a time; it needs no settings, because the store tells them. Exit status 0: ended as it was told; 2: it could not
    be run, or the disk refused.

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
        raise BadSettings("--trigger takes a number of seconds from 0 on, and not together with --once")
    root = StoreFolder.find(store, None, None).layout.root
    needed_terms(Files(), Layout(root, root / "commitlog"))  # Spark need not be started to be told so
    stays = has_session()
    spark = start_session("penstock dispatch", master, parse_confs(conf))
    try:
        with _StopSignals() as stopped, start(spark, store, once=once, trigger=trigger) as job:
            if not as_json:
                say(f"{store}: dispatching from {job.report().start} on")
            _follow(job, stopped, quiet=as_json)
        _tell(job.report(), as_json)
    finally:
        if not stays:
            end_session(spark)


class _StopSignals:
    """Truthy once SIGTERM or SIGINT has come; a second one ends the process at once."""

    def __init__(self) -> None:
        self._came = False
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self._came

    def _take(self, number: int, frame: object) -> None:
        if self._came:
            os._exit(128 + number)
        self._came = True

    def __enter__(self) -> _StopSignals:
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _follow(job: DispatchJob, stopped: _StopSignals, *, quiet: bool) -> None:
    said = time.monotonic()
    position = -1
    while not stopped:
        try:
            if job.wait(_LOOK_EVERY_S):
                return
        except PenstockError:
            if stopped:  # whoever ends us has ended Spark, too
                return
            raise
        report = job.report()
        if not quiet and time.monotonic() - said >= _SAY_EVERY_S and report.position != position:
            said, position = time.monotonic(), report.position
            say(f"complete up to {position}, {format_size(report.behind)} behind")


def _tell(report: DispatchReport, as_json: bool) -> None:
    if as_json:
        write_json({**msgspec.to_builtins(report), "behind": report.behind})
    else:
        built = format_size(report.position - report.start)
        write(f"queues and index are complete up to {report.position}: {built} in {report.batches} batches\n")
    flush()
