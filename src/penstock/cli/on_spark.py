"""What the verbs of `penstock pipeline` share: which stores, which Spark, and a session with a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

from penstock.cli.options import option
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stores: TypeAlias = Annotated[list[str] | None, option("--store", "DIR", "A store's folder, or a glob; repeatable.")]
Master: TypeAlias = Annotated[
    str | None,
    option("--master", "URL", "Spark's master, or sc://HOST for Connect; all cores of this machine otherwise."),
]
Confs: TypeAlias = Annotated[list[str] | None, option("--conf", "K=V", "A setting of Spark; repeatable.")]
StoreConfig: TypeAlias = Annotated[str, option("--config", "FILE", "A broker.conf to take the stores' settings from.")]


@contextmanager
def session(job: str, master: str | None, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """A session for one job, with a bar on stderr; ended afterwards, unless it was there before."""
    from penstock.pipeline.progress import watched
    from penstock.pipeline.session import has_session, start_session

    pairs = {}
    for pair in conf or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadSettings(f"--conf '{pair}': it must be a name and a value, as in spark.executor.memory=2g")
        pairs[name.strip()] = value.strip()
    stays = has_session()
    spark = start_session(f"penstock {job}", master, pairs)
    try:
        with (
            ProgressLine(lambda tasks: f"{tasks} tasks") as line,
            watched(spark, lambda done, total: line(job, done, total)),
        ):
            yield spark
    finally:
        if not stays:
            spark.stop()


def needed(stores: Sequence[str] | None) -> list[str]:
    """The stores that were named. Raises BadSettings if there are none."""
    if not stores:
        raise BadSettings("which stores? Name them with --store DIR")
    return list(stores)
