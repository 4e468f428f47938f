"""What the verbs of `penstock pipeline` share: which stores, which Spark, and a session with a bar."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from penstock.cli.options import option
from penstock.cli.output import say
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings
from penstock.telemetry import job_span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs.common import JobInput

Stores: TypeAlias = Annotated[list[str] | None, option("--store", "DIR", "A store's folder, or a glob; repeatable.")]
Master: TypeAlias = Annotated[
    str | None,
    option("--master", "URL", "Spark's master, or sc://HOST for Connect; all cores of this machine otherwise."),
]
Confs: TypeAlias = Annotated[list[str] | None, option("--conf", "K=V", "A setting of Spark; repeatable.")]
MaybeNamesrv: TypeAlias = Annotated[str, option("--namesrv", "HOST:PORT", "Name servers of a cluster, not of stores.")]
_NO_TOPIC: Final = re.compile("(?!)")
_GOES_ON: Final = "what is done stays, and the same command goes on from there"
_LEFT: Final = {
    "export": _GOES_ON,
    "replay": _GOES_ON,
    "import": _GOES_ON,
    "lake": "the next run goes on from there",
    "rebuild": "what was swapped in is in force, else the old files are, and the same command goes on from there",
}


@contextmanager
def session(
    job: str, master: str | None, conf: Sequence[str] | None, *, light_java: bool = False
) -> Iterator[SparkSession]:
    """A session for one job, with a bar on stderr; ended afterwards, unless it was there before.

    `light_java`: see `start_session`.
    """
    from penstock.pipeline.session import has_session, quiet_interrupts, report_progress, start_session

    pairs = parse_confs(conf)
    stays = has_session()
    with interruptible(job):
        spark = start_session(f"penstock {job}", master, pairs, light_java=light_java)
        try:
            with (
                nullcontext() if stays else quiet_interrupts(),
                job_span(job),
                ProgressLine(lambda tasks: f"{tasks} tasks") as line,
                report_progress(spark, lambda done, total: line(job, done, total)),
            ):
                yield spark
        finally:
            if not stays:
                spark.stop()


@contextmanager
def interruptible(job: str) -> Iterator[None]:
    """Says what an interrupted job has left, instead of the traceback that py4j logs."""
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    try:
        yield
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        say(f"{job}: interrupted; {_LEFT.get(job, 'nothing was changed')}.")
        raise KeyboardInterrupt from None
    finally:
        root.removeFilter(_is_no_interrupt)


def _is_interrupt(error: BaseException | None) -> bool:
    """An interrupt, or what failed while things were put in order after one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not _is_interrupt(record.exc_info[1])


def parse_confs(conf: Sequence[str] | None) -> dict[str, str]:
    """Settings of Spark as `--conf` gives them. Raises BadSettings."""
    pairs = {}
    for pair in conf or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadSettings(f"--conf '{pair}': it must be a name and a value, as in spark.executor.memory=2g")
        pairs[name.strip()] = value.strip()
    return pairs


def place(
    stores: Sequence[str] | None, namesrv: str = "", config: Path | None = None, pairs: Sequence[str] | None = None
) -> JobInput:
    """Where a job's messages are, as the options say it."""
    from penstock.pipeline.jobs.common import JobInput

    given = str(config) if config else ""
    return JobInput(stores=tuple(stores or ()), namesrv=namesrv, config=given, settings=tuple(pairs or ()))


def check(where: JobInput, topics: Sequence[str] = (), *, only_stores: bool = False) -> None:
    """Before Spark starts, which takes a while: raises for a place that is no good, or has not all of these topics.

    That is BadSettings, BadStore, or Unreachable for a cluster that does not answer.
    """
    from penstock.pipeline.plan import check_input

    where.check(only_stores=only_stores)
    where.folders()
    if topics:
        check_input(where.options(subscribe=tuple(topics)))
    elif where.namesrv:
        check_input(where.options(subscribe_pattern=_NO_TOPIC))


def milliseconds(name: str, text: str) -> int | None:
    """A time as an option takes it: 2026-11-16T08:00, in local time unless it says otherwise, or milliseconds."""
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise BadSettings(f"{name} '{text}': it must be a time such as 2026-11-16T08:00, or milliseconds") from None
