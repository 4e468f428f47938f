"""The verbs `usage` (disk usage) and `lag` (consumer lag), for `penstock`, `penstock pipeline` and `penstock store`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli.options import AsJson, Config, Folder, Pairs, option
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.verbs_on_spark import (
    EitherCall,
    JobCall,
    MaybeNamesrv,
    Paths,
    Stores,
    check_input,
    either_way,
    job_input,
    on_spark,
)
from penstock.human_units import format_size, format_time

if TYPE_CHECKING:
    from penstock.pipeline.jobs.lag import QueueLag
    from penstock.pipeline.jobs.usage import Count, Key, Usage

KINDS: Final = ("topic", "queue", "tag", "producer", "day", "hour")
_MAX_SHOWN: Final = 20
_SMALL: Final = 1 << 30
By = Annotated[str, option("--by", "KIND", f"Group by {', '.join(KINDS)}; default: topic.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print all counts as CSV.")]
Html = Annotated[Path | None, option("--html", "FILE", "Also write a page with charts.")]


@on_spark
def usage(
    call: JobCall,
    stores: Stores = None,
    by: By = "topic",
    as_csv: AsCsv = False,
    html: Html = None,
) -> None:
    """Disk usage by topic, queue, tag, producer, day and hour.

    Reads the log itself, so messages that are in no queue count, too. Also estimates how fast the log grows, and when
    the disk is full if nothing is deleted. Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock pipeline usage --store data/store
      penstock pipeline usage --store '/stores/*' --by producer --html usage.html
    """
    from penstock.pipeline.jobs.usage import usage as count

    where = call.input(stores)
    _check(by, call.as_json, as_csv, html)
    check_input(where, only_stores=True)
    with call.session("usage", light_java=True) as spark:
        result = count(spark, where)
    _print_usage(result, by, call.as_json, as_csv, html)
    if result.size < _SMALL and not call.as_json and not as_csv:
        write_note(f"for stores of this size, `penstock usage {where.stores[0]}` prints the same at once.")


@either_way
def usage_of_stores(call: EitherCall, paths: Paths, by: By = "topic", as_csv: AsCsv = False, html: Html = None) -> None:
    """Disk usage by topic, queue, tag, producer, day and hour.

    Reads the log itself, so messages that are in no queue count, too. Also estimates how fast the log grows, and when
    the disk is full if nothing is deleted. Runs in this process if the logs are small, and otherwise on Spark; stderr
    says which. Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock usage data/store
      penstock usage data/store --by tag --json
      penstock usage data/store --master 'local[4]' --html usage.html
    """
    from penstock.pipeline.jobs import usage as job

    where = call.input(paths)
    _check(by, call.as_json, as_csv, html)
    if call.uses_spark("usage", where.folders().values()):
        with call.session("usage", light_java=True) as spark:
            result = job.usage(spark, where)
    else:
        result = job.usage_here(where)
    _print_usage(result, by, call.as_json, as_csv, html)


def usage_here(
    folder: Folder,
    by: By = "topic",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Disk usage by topic, queue, tag, producer, day and hour.

    The same as `penstock pipeline usage`, in this process and without Spark. Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock store usage data/store
      penstock store usage data/store --by tag --json
    """
    from penstock.pipeline.jobs.usage import usage_here as count

    _check(by, as_json, as_csv, html)
    _print_usage(count(job_input([str(folder)], config=config, pairs=pairs)), by, as_json, as_csv, html)


def _check(by: str, as_json: bool, as_csv: bool, html: Path | None) -> None:
    """Checks the options. It runs before the count, which takes a while."""
    if by not in KINDS:
        raise typer.BadParameter(f"--by '{by}': it must be one of {', '.join(KINDS)}")
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv both write to stdout; give one of them")
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        problem = "that is a directory" if html.is_dir() else f"there is no directory {html.parent}"
        raise typer.BadParameter(f"--html {html}: {problem}; name a file in an existing directory")


def _print_usage(result: Usage, by: str, as_json: bool, as_csv: bool, html: Path | None) -> None:
    if html is not None:
        from penstock.pipeline.jobs.usage import page

        html.write_text(page(result), encoding="utf-8")
        write_note(f"wrote the charts to {html}")
    if as_json:
        write_json(_document(result))
    elif as_csv:
        _write_csv(result)
    else:
        _show(result, by)


def _row(key: Key, count: Count) -> dict[str, Any]:
    return {
        "by": key.by,
        "store": key.store,
        "topic": key.topic,
        "queue_id": None if key.queue_id < 0 else key.queue_id,
        "tag": key.tag if key.by == "tag" else None,
        "producer": key.host if key.by == "producer" else None,
        "from": key.hour * 3_600_000 if key.by in ("hour", "day") else None,
        "messages": count.messages,
        "bytes": count.size,
        "first_ms": count.first_ms,
        "last_ms": count.last_ms,
        "p50": count.percentile(0.5),
        "p95": count.percentile(0.95),
        "p99": count.percentile(0.99),
    }


def _document(result: Usage) -> dict[str, Any]:
    disks = [
        {
            "store": disk.store,
            "path": disk.path,
            "log_bytes": disk.log,
            "disk_bytes": disk.total,
            "free_bytes": disk.free,
            "bytes_per_day": disk.per_day,
            "days_left": disk.days_left,
        }
        for disk in result.disks
    ]
    counts = [_row(key, count) for key, count in result.tally.counts]
    return {
        "messages": result.messages,
        "bytes": result.size,
        "flaws": result.tally.flaws,
        "stores": disks,
        "counts": counts,
    }


def _write_csv(result: Usage) -> None:
    from penstock.pipeline.jobs.usage import Count, Key

    rows = [_row(key, count) for key, count in result.tally.counts]
    page = StringIO()
    writer = csv.DictWriter(page, list(_row(Key("", ""), Count())), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write(page.getvalue())


def _show(result: Usage, by: str) -> None:
    counts = sorted(
        ((key, count) for key, count in result.tally.counts if key.by == by), key=lambda each: (-each[1].size, each[0])
    )
    if by in ("day", "hour"):
        counts.sort(key=lambda each: (each[0].store, each[0].topic, each[0].hour))
    grid = table(
        f"Usage by {by}",
        "store", "topic", "", "messages", "bytes", "p50", "p99", "first", "last",
        right=("messages", "bytes", "p50", "p99"),
    )  # fmt: skip
    for key, count in counts[:_MAX_SHOWN]:
        sizes = format_size(count.size), count.percentile(0.5), count.percentile(0.99)
        add_row(
            grid,
            key.store,
            key.topic,
            _name(key),
            count.messages,
            *sizes,
            format_time(count.first_ms),
            format_time(count.last_ms),
        )
    show(grid)
    if len(counts) > _MAX_SHOWN:
        write(f"and {len(counts) - _MAX_SHOWN} more; --json and --csv list all\n")
    write(f"\n{result.messages} messages of {format_size(result.size)}\n")
    for disk in result.disks:
        left = "not growing" if disk.days_left is None else f"full in {disk.days_left:.0f} days if nothing is deleted"
        write(f"{disk.store}: {format_size(disk.per_day)} a day, {format_size(disk.free)} free, {left}\n")
    if result.tally.flaws:
        write_note(f"{result.tally.flaws} ranges of the logs could not be read; see `penstock store verify`")


def _name(key: Key) -> str:
    if key.by == "queue":
        return f"queue {key.queue_id}"
    if key.by in ("day", "hour"):
        return format_time(key.hour * 3_600_000)[: 10 if key.by == "day" else 16]
    return key.tag or key.host


Group = Annotated[str, option("--group", "G", "Only this group.")]


@on_spark
def lag(
    call: JobCall,
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    group: Group = "",
) -> None:
    """Lag of consumer groups in messages and time, and stuck queues.

    For stores, from consumerOffset.json and the queues; for a cluster, from its brokers. Exit status 0: done; 2: could
    not run.

    Examples:

    \b
      penstock pipeline lag --store data/store
      penstock pipeline lag --namesrv 127.0.0.1:9876 --group warehouse --json
    """
    from penstock.pipeline.jobs.lag import lag_on_spark

    where = call.input(stores, namesrv)
    check_input(where)
    with call.session("lag", light_java=True) as spark:
        rows = lag_on_spark(spark, where, group)
    _print_lag(rows, group, call.as_json)
    if stores and not call.as_json:
        total = sum(each.behind for each in rows)
        write_note(f"{total} messages behind in total; `penstock lag {stores[0]}` prints the same at once")


@either_way
def lag_of_stores(call: EitherCall, paths: Paths, group: Group = "") -> None:
    """Lag of consumer groups in messages and time, and stuck queues.

    From consumerOffset.json and the queues. Reads a few units of each queue, so it runs in this process whatever the
    size, and on Spark only with --master. Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock lag data/store
      penstock lag data/store --group warehouse --json
    """
    from penstock.pipeline.jobs import lag as job

    where = call.input(paths)
    where.folders()  # checks them before Spark starts
    if call.uses_spark("lag", ()):
        with call.session("lag", light_java=True) as spark:
            rows = job.lag_on_spark(spark, where, group)
    else:
        rows = job.lag(where, group)
    _print_lag(rows, group, call.as_json)


def lag_here(
    folder: Folder, group: Group = "", as_json: AsJson = False, config: Config = None, pairs: Pairs = None
) -> None:
    """Lag of consumer groups in messages and time, and stuck queues.

    The same as `penstock pipeline lag`, without Spark. Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock store lag data/store
      penstock store lag data/store --group warehouse --json
    """
    from penstock.pipeline.jobs.lag import lag as measure

    _print_lag(measure(job_input([str(folder)], config=config, pairs=pairs), group), group, as_json)


def _print_lag(rows: Sequence[QueueLag], group: str, as_json: bool) -> None:
    if not rows:
        write_note(f"no offsets of {f'group {group}' if group else 'any group'} here: nothing has been consumed.")
    if as_json:
        write_json({"queues": [_object(each) for each in rows]})
        return
    grid = table(
        "Consumer groups",
        "group", "topic", "broker", "queue", "consumed", "end", "behind", "gone", "time behind", "last consumed", "",
        right=("queue", "consumed", "end", "behind", "gone", "time behind"),
    )  # fmt: skip
    for each in rows:
        spent = f"{each.behind_ms / 1000:.0f} s" if each.behind else "-"
        consumed = (
            each.consumer_offset,
            each.max_offset,
            each.behind,
            each.gone,
            spent,
            format_time(each.last_consumed_ms),
        )
        add_row(grid, each.group, each.topic, each.broker, each.queue_id, *consumed, "stuck" if each.stuck else "")
    show(grid)


def _object(each: QueueLag) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(each),
        "behind": each.behind,
        "gone": each.gone,
        "behind_ms": each.behind_ms,
    }
