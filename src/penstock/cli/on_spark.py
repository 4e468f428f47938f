"""What the verbs of `penstock pipeline` share: which stores, which Spark, and a session with a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from penstock.cli.options import option
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings
from penstock.telemetry import job_span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs.where import Where

Stores: TypeAlias = Annotated[list[str] | None, option("--store", "DIR", "A store's folder, or a glob; repeatable.")]
Master: TypeAlias = Annotated[
    str | None,
    option("--master", "URL", "Spark's master, or sc://HOST for Connect; all cores of this machine otherwise."),
]
Confs: TypeAlias = Annotated[list[str] | None, option("--conf", "K=V", "A setting of Spark; repeatable.")]
MaybeNamesrv: TypeAlias = Annotated[str, option("--namesrv", "HOST:PORT", "Name servers of a cluster, not of stores.")]


@contextmanager
def session(
    job: str, master: str | None, conf: Sequence[str] | None, *, light_java: bool = False
) -> Iterator[SparkSession]:
    """A session for one job, with a bar on stderr; ended afterwards, unless it was there before.

    `light_java`: see `start_session`.
    """
    from penstock.pipeline.progress import watched
    from penstock.pipeline.session import has_session, start_session

    pairs = parse_confs(conf)
    stays = has_session()
    spark = start_session(f"penstock {job}", master, pairs, light_java=light_java)
    try:
        with (
            job_span(job),
            ProgressLine(lambda tasks: f"{tasks} tasks") as line,
            watched(spark, lambda done, total: line(job, done, total)),
        ):
            yield spark
    finally:
        if not stays:
            spark.stop()


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
) -> Where:
    """Where a job's messages are, as the options say it."""
    from penstock.pipeline.jobs.where import Where

    given = str(config) if config else ""
    return Where(stores=tuple(stores or ()), namesrv=namesrv, config=given, settings=tuple(pairs or ()))


def check(where: Where, *, only_stores: bool = False) -> None:
    """Before Spark starts, which takes a while: raises BadSettings or BadStore for a place that is no good."""
    where.check(only_stores=only_stores)
    where.folders()


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
