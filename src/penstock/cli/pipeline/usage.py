"""`penstock pipeline usage` and `penstock store usage`: who fills the disk.

`penstock pipeline lag` and `penstock store lag`: how far consumer groups are behind.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli.options import AsJson, Config, Folder, Pairs, option
from penstock.cli.output import add_row, say, show, table, write, write_json
from penstock.cli.spark import Confs, Master, MaybeNamesrv, Stores, check, place, session
from penstock.units import format_size, format_time

if TYPE_CHECKING:
    from penstock.pipeline.jobs.lag import Behind
    from penstock.pipeline.jobs.usage import Count, Key, Usage

KINDS: Final = ("topic", "queue", "tag", "producer", "day", "hour")
_SHOWN: Final = 20
_SMALL: Final = 1 << 30
By = Annotated[str, option("--by", "KIND", f"What to show: {', '.join(KINDS)}; topic if it is not given.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="All counts as comma-separated values.")]
Html = Annotated[Path | None, option("--html", "FILE", "Also write one page with charts.")]


def usage(
    stores: Stores = None,
    by: By = "topic",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Count who fills the disk: by topic, queue, tag, producer, day and hour.

    Goes over the log itself: what no queue shows counts too. Says how fast the log grows, and for how many days the
    disk lasts if nothing is deleted. Exit status 0: done; 2: it could not be run.

    Examples:

    \b
      penstock pipeline usage --store data/store
      penstock pipeline usage --store '/stores/*' --by producer --html usage.html
    """
    from penstock.pipeline.jobs.usage import usage as count

    where = place(stores, config=config, pairs=pairs)
    _check(by, as_json, as_csv, html)
    check(where, only_stores=True)
    with session("usage", master, conf, light_java=True) as spark:
        found = count(spark, where)
    _print_usage(found, by, as_json, as_csv, html)
    if found.size < _SMALL and not as_json and not as_csv:
        say(f"for stores of this size, `penstock store usage {where.stores[0]}` says the same at once.")


def usage_here(
    folder: Folder,
    by: By = "topic",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Count who fills the disk: by topic, queue, tag, producer, day and hour.

    The same as `penstock pipeline usage`, in this process and without Spark. Exit status 0: done; 2: it could not be
    run.

    Examples:

    \b
      penstock store usage data/store
      penstock store usage data/store --by tag --json
    """
    from penstock.pipeline.jobs.usage import usage_here as count

    _check(by, as_json, as_csv, html)
    _print_usage(count(place([str(folder)], config=config, pairs=pairs)), by, as_json, as_csv, html)


def _check(by: str, as_json: bool, as_csv: bool, html: Path | None) -> None:
    """Before anything is counted, which takes a while."""
    if by not in KINDS:
        raise typer.BadParameter(f"--by '{by}': it must be one of {', '.join(KINDS)}")
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv both write to stdout; give one of them")
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        wrong = "that is a folder" if html.is_dir() else f"there is no folder {html.parent}"
        raise typer.BadParameter(f"--html {html}: {wrong}; name a file in a folder that is there")


def _print_usage(found: Usage, by: str, as_json: bool, as_csv: bool, html: Path | None) -> None:
    if html is not None:
        from penstock.pipeline.jobs.usage import page

        html.write_text(page(found), encoding="utf-8")
        say(f"the charts are in {html}")
    if as_json:
        write_json(_document(found))
    elif as_csv:
        _write_csv(found)
    else:
        _show(found, by)


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


def _document(found: Usage) -> dict[str, Any]:
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
        for disk in found.disks
    ]
    counts = [_row(key, count) for key, count in found.tally.counts]
    return {
        "messages": found.messages,
        "bytes": found.size,
        "flaws": found.tally.flaws,
        "stores": disks,
        "counts": counts,
    }


def _write_csv(found: Usage) -> None:
    from penstock.pipeline.jobs.usage import Count, Key

    rows = [_row(key, count) for key, count in found.tally.counts]
    page = StringIO()
    writer = csv.DictWriter(page, list(_row(Key("", ""), Count())), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write(page.getvalue())


def _show(found: Usage, by: str) -> None:
    counts = sorted(
        ((key, count) for key, count in found.tally.counts if key.by == by), key=lambda each: (-each[1].size, each[0])
    )
    if by in ("day", "hour"):
        counts.sort(key=lambda each: (each[0].store, each[0].topic, each[0].hour))
    made = table(
        f"Usage by {by}",
        "store", "topic", "", "messages", "bytes", "p50", "p99", "first", "last",
        right=("messages", "bytes", "p50", "p99"),
    )  # fmt: skip
    for key, count in counts[:_SHOWN]:
        sizes = format_size(count.size), count.percentile(0.5), count.percentile(0.99)
        add_row(
            made,
            key.store,
            key.topic,
            _name(key),
            count.messages,
            *sizes,
            format_time(count.first_ms),
            format_time(count.last_ms),
        )
    show(made)
    if len(counts) > _SHOWN:
        write(f"and {len(counts) - _SHOWN} more; --json and --csv have them all\n")
    write(f"\n{found.messages} messages of {format_size(found.size)}\n")
    for disk in found.disks:
        left = "nothing comes" if disk.days_left is None else f"full in {disk.days_left:.0f} days if nothing is deleted"
        write(f"{disk.store}: {format_size(disk.per_day)} a day, {format_size(disk.free)} free, {left}\n")
    if found.tally.flaws:
        say(f"{found.tally.flaws} places of the logs could not be read; `penstock store verify` says where and why")


def _name(key: Key) -> str:
    if key.by == "queue":
        return f"queue {key.queue_id}"
    if key.by in ("day", "hour"):
        return format_time(key.hour * 3_600_000)[: 10 if key.by == "day" else 16]
    return key.tag or key.host


Group = Annotated[str, option("--group", "G", "Only this group.")]


def lag(
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    group: Group = "",
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Show how far consumer groups are behind, in messages and in time, and which queues are stuck.

    Of stores, by their consumerOffset.json and their queues; of a cluster, by what its brokers say. Exit status 0:
    done; 2: it could not be run.

    Examples:

    \b
      penstock pipeline lag --store data/store
      penstock pipeline lag --namesrv 127.0.0.1:9876 --group warehouse --json
    """
    from penstock.pipeline.jobs.lag import lag as look
    from penstock.pipeline.jobs.lag import lag_frame

    where = place(stores, namesrv, config, pairs)
    check(where)
    rows = look(where, group)
    with session("lag", master, conf, light_java=True) as spark:
        behind = lag_frame(spark, rows).groupBy().sum("behind").first()
    _print_lag(rows, group, as_json)
    if stores and not as_json:
        total = 0 if behind is None else behind[0] or 0
        say(f"{total} messages behind in all; `penstock store lag {stores[0]}` says the same at once")


def lag_here(
    folder: Folder, group: Group = "", as_json: AsJson = False, config: Config = None, pairs: Pairs = None
) -> None:
    """Show how far consumer groups are behind, in messages and in time, and which queues are stuck.

    The same as `penstock pipeline lag`, without Spark. Exit status 0: done; 2: it could not be run.

    Examples:

    \b
      penstock store lag data/store
      penstock store lag data/store --group warehouse --json
    """
    from penstock.pipeline.jobs.lag import lag as look

    _print_lag(look(place([str(folder)], config=config, pairs=pairs), group), group, as_json)


def _print_lag(rows: Sequence[Behind], group: str, as_json: bool) -> None:
    if not rows:
        say(f"nothing is known of {f'a group {group}' if group else 'any group'} here: none has consumed anything.")
    if as_json:
        write_json({"queues": [_object(each) for each in rows]})
        return
    made = table(
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
        add_row(made, each.group, each.topic, each.broker, each.queue_id, *consumed, "stuck" if each.stuck else "")
    show(made)


def _object(each: Behind) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(each),
        "behind": each.behind,
        "gone": each.gone,
        "behind_ms": each.behind_ms,
    }
