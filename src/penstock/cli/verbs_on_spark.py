"""The common parts of verbs that may run on Spark: options, input, and a Spark session with progress.

    @on_spark
    def lag(call: JobCall, stores: Stores = None) -> None:
        ...

`on_spark` turns a verb into a command of `penstock pipeline`, which has the verb's own options, then the common ones.
`either_way` makes a short verb such as `penstock lag PATH`: it runs in this process if the stores are small, otherwise
on Spark, and says which.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from penstock.cli.options import AsJson, CommonOption, Config, Pairs, option, with_common_options
from penstock.cli.output import write_note
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings, MissingPackage
from penstock.human_units import format_size, parse_size, parse_time
from penstock.opentelemetry_spans import job_span
from penstock.optional_packages import missing_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs.job_input import JobInput
    from penstock.store.readonly.store_folder import StoreFolder


Stores: TypeAlias = Annotated[list[str] | None, option("--store", "DIR", "A store's directory, or a glob; repeatable.")]
Master: TypeAlias = Annotated[
    str | None,
    option("--master", "URL", "Spark's master, or sc://HOST for Connect; default: all cores of this machine."),
]
Confs: TypeAlias = Annotated[list[str] | None, option("--conf", "K=V", "A Spark setting; repeatable.")]
Paths: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="PATH", help="The directories of stores.", show_default=False)
]
SparkAbove: TypeAlias = Annotated[
    str,
    typer.Option(
        "--spark-above",
        metavar="SIZE",
        envvar="PENSTOCK_SPARK_ABOVE",
        help="Run on Spark if the logs are larger than this; below it, in this process.",
    ),
]
KeepSession: TypeAlias = Annotated[bool, typer.Option("--keep-session", hidden=True)]
"""For the console, whose processes run several jobs: the Spark session stays for the next one."""
MaybeNamesrv: TypeAlias = Annotated[str, option("--namesrv", "HOST:PORT", "Read from a cluster: its name servers.")]
_NO_TOPIC: Final = re.compile("(?!)")
_RESUMES: Final = "finished work is kept, and the same command resumes"
_AFTER_INTERRUPT: Final = {
    "export": _RESUMES,
    "replay": _RESUMES,
    "import": _RESUMES,
    "lake": "the next run resumes",
    "rebuild": "queues that were swapped in are new, the others are unchanged, and the same command resumes",
}


@dataclass(frozen=True, slots=True)
class JobCall:
    """The common options of one job."""

    as_json: bool = False
    master: str | None = None
    conf: Sequence[str] | None = None
    config: Path | None = None
    pairs: Sequence[str] | None = None
    keep_session: bool = False

    def session(self, job: str, *, light_java: bool = False) -> AbstractContextManager[SparkSession]:
        """Opens a Spark session for the job, by the module's function `session`."""
        return session(job, self.master, self.conf, light_java=light_java, keep=self.keep_session)

    def input(self, stores: Sequence[str] | None, namesrv: str = "") -> JobInput:
        """Returns the job's input: stores, or a cluster."""
        return job_input(stores, namesrv, self.config, self.pairs)


_COMMON: Final[tuple[CommonOption, ...]] = (
    ("as_json", AsJson, False),
    ("master", Master, None),
    ("conf", Confs, None),
    ("config", Config, None),
    ("pairs", Pairs, None),
    ("keep_session", KeepSession, False),
)


@dataclass(frozen=True, slots=True)
class EitherCall(JobCall):
    """The common options of a short verb, which runs in this process or on Spark."""

    spark_above: str = "10g"

    def uses_spark(self, job: str, folders: Iterable[StoreFolder], needs_spark: str = "") -> bool:
        """Returns whether the job runs on Spark, and says so on stderr.

        It does with --master or --conf, for logs that occupy more than --spark-above on disk, and if `needs_spark`
        says why it must. Raises BadSettings, or MissingPackage if Spark's packages are not installed.
        """
        try:
            limit = parse_size(self.spark_above)
        except ValueError as error:
            raise BadSettings(f"option --spark-above '{self.spark_above}': {error}") from None
        size = sum(folder.files.allocated(folder.layout.commit_log) for folder in folders)
        if self.master is not None or self.conf:
            why = f"as {'--master' if self.master is not None else '--conf'} asks for"
        elif needs_spark:
            why = needs_spark
        elif size > limit:
            why = f"the logs have {format_size(size)}, more than {format_size(limit)}"
        else:
            write_note(f"{job}: in this process, without Spark" + (f" ({format_size(size)} of log)" if size else ""))
            return False
        write_note(f"{job}: on Spark, {why}")
        if missing := missing_modules("spark"):
            raise MissingPackage(f"Spark needs the packages {', '.join(missing)}: pip install 'penstock[spark]'")
        return True


def either_way(verb: Callable[..., None]) -> Callable[..., None]:
    """Turns a short verb into a command with the common options."""

    def invoke(common: dict[str, Any], own: dict[str, Any]) -> None:
        verb(EitherCall(**common), **own)

    return with_common_options(verb, (*_COMMON, ("spark_above", SparkAbove, "10g")), invoke)


def on_spark(verb: Callable[..., None]) -> Callable[..., None]:
    """Turns the verb into a command with the common options."""

    def invoke(common: dict[str, Any], own: dict[str, Any]) -> None:
        verb(JobCall(**common), **own)

    return with_common_options(verb, _COMMON, invoke)


@contextmanager
def session(
    job: str, master: str | None, conf: Sequence[str] | None, *, light_java: bool = False, keep: bool = False
) -> Iterator[SparkSession]:
    """Opens a Spark session for one job, with progress on stderr. Stops the session afterwards, unless it existed
    before.

    `light_java` is explained at `start_session`. With `keep` the session stays for the next job that asks for that,
    whichever it is, so Java is not light; an error in the block stops it. A session of a Connect server, which starts
    at once, does not stay.
    """
    from penstock.pipeline.session import has_session, quiet_interrupts, report_progress, start_session

    pairs = parse_confs(conf)
    existed = has_session()
    keep = keep and not (master or "").startswith("sc://")
    is_own = keep or not existed
    with interruptible(job):
        app = "penstock jobs" if keep else f"penstock {job}"
        spark = start_session(app, master, pairs, light_java=light_java and not keep)
        try:
            with (
                nullcontext() if existed else quiet_interrupts(),
                job_span(job),
                ProgressLine(lambda tasks: f"{tasks} tasks") as line,
                report_progress(spark, lambda done, total: line(job, done, total)),
            ):
                yield spark
        except BaseException:
            keep = False
            raise
        finally:
            if is_own and not keep:
                spark.stop()


@contextmanager
def interruptible(job: str) -> Iterator[None]:
    """Handles an interrupt of the job: prints a note about the state it leaves, and hides py4j's traceback."""
    root = logging.getLogger()
    root.addFilter(_is_not_interrupt)
    try:
        yield
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        write_note(f"{job}: interrupted; {_AFTER_INTERRUPT.get(job, 'nothing was changed')}.")
        raise KeyboardInterrupt from None
    finally:
        root.removeFilter(_is_not_interrupt)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is KeyboardInterrupt, or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not _is_interrupt(record.exc_info[1])


def parse_confs(conf: Sequence[str] | None) -> dict[str, str]:
    """Parses the Spark settings of `--conf` options. Raises BadSettings."""
    pairs = {}
    for pair in conf or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadSettings(f"--conf '{pair}': it must be NAME=VALUE, as in spark.executor.memory=2g")
        pairs[name.strip()] = value.strip()
    return pairs


def job_input(
    stores: Sequence[str] | None, namesrv: str = "", config: Path | None = None, pairs: Sequence[str] | None = None
) -> JobInput:
    """Returns a job's input: stores, or a cluster."""
    from penstock.pipeline.jobs.job_input import JobInput

    return JobInput(
        stores=tuple(stores or ()),
        namesrv=namesrv,
        config=str(config) if config else "",
        settings=tuple(pairs or ()),
    )


def check_input(where: JobInput, topics: Sequence[str] = (), *, only_stores: bool = False) -> None:
    """Checks a job's input and its topics. It runs before Spark, whose start takes several seconds.

    Raises BadSettings, BadStore, or Unreachable if the cluster does not answer.
    """
    from penstock.pipeline.scan_plan import check_input

    where.check(only_stores=only_stores)
    where.folders()
    if topics:
        check_input(where.options(subscribe=tuple(topics)))
    elif where.namesrv:
        check_input(where.options(subscribe_pattern=_NO_TOPIC))


def time_option(name: str, text: str) -> int | None:
    """Parses the time in an option's value. Returns epoch milliseconds; None for an empty value. Raises BadSettings."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        raise BadSettings(
            f"{name}: not a valid time: '{text}'; it must be like 2026-11-16T08:00, now-1h, or milliseconds"
        ) from None
