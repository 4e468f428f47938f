"""`penstock pipeline diff` and `penstock store diff`: do two stores hold the same messages?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Folder, Pairs, number, option
from penstock.cli.output import add_row, say, show, table, write, write_json
from penstock.cli.spark import Confs, Master, MaybeNamesrv, check, place, session
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.pipeline.jobs.diff import Diff, LogDiff, Sides
    from penstock.pipeline.jobs.diff.log_bytes import LogMessage
    from penstock.pipeline.jobs.diff.report import QueueDiff, Spot

_SHOWN: Final = 20

Other = Annotated[
    Path | None, typer.Argument(metavar="[OTHER]", help="The folder of the other store.", show_default=False)
]
By = Annotated[str, option("--by", "WAY", "place (topic, queue and offset; the default), key, or bytes of the logs.")]
Topics = Annotated[list[str] | None, option("--topic", "T", "Only this topic; repeatable.")]
Broker = Annotated[str, option("--broker", "NAME", "Which broker of the cluster, where it has several.")]
UpToEnd = Annotated[
    bool, typer.Option("--up-to-common-end", help="The same if only one side has more at its end, as a slave behind.")
]
Limit = Annotated[int, number("--limit", "N", "How many examples are shown.", low=0, default=True)]


def diff(
    folder: Folder,
    other: Other = None,
    namesrv: MaybeNamesrv = "",
    broker: Broker = "",
    by: By = "place",
    topics: Topics = None,
    up_to_common_end: UpToEnd = False,
    limit: Limit = _SHOWN,
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Compare two stores, or a store and a cluster: what is only here, only there, and different.

    By place, messages of the same topic, queue and offset are compared, and what has no equal there is looked for by
    its unique key. By key, the place does not matter: for what was replayed. By bytes, two logs are compared as a
    master's and its slave's must be equal. That retention has deleted more on one side is told, and is no difference.
    Exit status 0: the same; 1: different; 2: it could not be run.

    Examples:

    \b
      penstock pipeline diff data/store backup/store
      penstock pipeline diff master/store slave/store --by bytes --up-to-common-end
      penstock pipeline diff data/store --namesrv 127.0.0.1:9876 --topic orders
    """
    from penstock.pipeline.jobs import diff as job

    sides = _sides(folder, other, namesrv, broker, by, topics, up_to_common_end, config, pairs)
    with session("diff", master, conf, light_java=True) as spark:
        if by == "bytes":
            log_diff = job.diff_bytes(spark, sides, limit)
        else:
            found = job.diff(spark, sides, limit)
    if not as_json and other is not None:
        say(f"for small stores, `penstock store diff {folder} {other}` says the same at once")
    if by == "bytes":
        _tell_bytes(log_diff, as_json)
    else:
        _tell(found, as_json)


def diff_here(
    folder: Folder,
    other: Other = None,
    by: By = "place",
    topics: Topics = None,
    up_to_common_end: UpToEnd = False,
    limit: Limit = _SHOWN,
    as_json: AsJson = False,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Compare two stores: what is only here, only there, and different.

    The same as `penstock pipeline diff`, in this process and without Spark. Exit status 0: the same; 1: different; 2:
    it could not be run.

    Examples:

    \b
      penstock store diff data/store backup/store
      penstock store diff master/store slave/store --by bytes --json
    """
    from penstock.pipeline.jobs import diff as job

    sides = _sides(folder, other, "", "", by, topics, up_to_common_end, config, pairs)
    if by == "bytes":
        _tell_bytes(job.diff_bytes_here(sides, limit), as_json)
    else:
        _tell(job.diff_here(sides, limit), as_json)


def _sides(
    folder: Path,
    other: Path | None,
    namesrv: str,
    broker: str,
    by: str,
    topics: Sequence[str] | None,
    up_to_common_end: bool,
    config: Path | None,
    pairs: Sequence[str] | None,
) -> Sides:
    from penstock.pipeline.jobs.diff import Sides

    if other is None and not namesrv:
        raise typer.BadParameter("compare with what? Give the folder of another store, or --namesrv HOST:PORT")
    if other is not None and namesrv:
        raise typer.BadParameter(f"compare with {other} or with {namesrv}? Give one of them")
    sides = Sides(
        a=place([str(folder)], config=config, pairs=pairs),
        b=place([str(other)] if other else None, namesrv, config, pairs),
        by=by,
        topics=tuple(topics or ()),
        broker=broker,
        up_to_common_end=up_to_common_end,
    )
    sides.check()
    check(sides.a)
    check(sides.b)
    return sides


# -- messages --------------------------------------------------------------------------------------------------------


def _tell(found: Diff, as_json: bool) -> None:
    if as_json:
        write_json(_document(found))
    else:
        _show(found)
    if not found.same:
        raise typer.Exit(exit_codes.PROBLEM)


def _document(found: Diff) -> dict[str, Any]:
    queues = [
        {**msgspec.to_builtins(queue), "behind": queue.behind, "begins_later": queue.begins_later}
        for queue in found.queues
    ]
    return {**msgspec.to_builtins(found), "same": found.same, "queues": queues}


def _show(found: Diff) -> None:
    from penstock.pipeline.jobs.diff.report import KINDS

    unequal = [queue for queue in found.queues if queue.counts or queue.one_sided]
    if unequal:
        shown = [kind for kind in KINDS if found.count(kind)]
        names = [kind.replace("_a", " in A").replace("_b", " in B").replace("_", " ") for kind in shown]
        made = table("Queues that differ", "topic", "queue", "same", *names, "", right=("queue", "same", *names))
        for queue in unequal[:_SHOWN]:
            counts = [queue.counts.get(kind, 0) for kind in shown]
            add_row(made, queue.topic, queue.queue_id, queue.same, *counts, _only(queue))
        show(made)
        if len(unequal) > _SHOWN:
            write(f"and {len(unequal) - _SHOWN} more; --json has them all\n")
    if found.examples:
        made = table("First differences", "", "topic", "A: queue, offset", "B: queue, offset", "unique key", "")
        for each in found.examples:
            add_row(made, each.kind.split("_")[0], each.topic, _spot(each.a), _spot(each.b), each.unique_key, each.what)
        show(made)
    _tell_ends(found)
    write(f"{sum(queue.same for queue in found.queues)} messages are the same at the same place; ")
    write("A and B are the same.\n" if found.same else "A and B are different.\n")
    write(f"A: {found.a}\nB: {found.b}\n")


def _only(queue: QueueDiff) -> str:
    if not queue.one_sided:
        return ""
    side, there = ("A", queue.a) if queue.b is None else ("B", queue.b)
    return "" if there is None else f"only {side} has it: {there[1] - there[0]} messages"


def _tell_ends(found: Diff) -> None:
    if found.by == "key":
        return
    for side, sign in (("B", 1), ("A", -1)):
        later = [queue.begins_later * sign for queue in found.queues if queue.begins_later * sign > 0]
        if later:
            write(f"{side} begins later in {len(later)} queues: {sum(later)} messages that were deleted sooner there\n")
        behind = [queue.behind * sign for queue in found.queues if queue.behind * sign > 0]
        if behind:
            write(f"{side} is {sum(behind)} messages behind, in {len(behind)} queues\n")


def _spot(spot: Spot | None) -> str:
    return "-" if spot is None else f"{spot.queue_id}, {spot.queue_offset}"


# -- bytes -----------------------------------------------------------------------------------------------------------


def _tell_bytes(found: LogDiff, as_json: bool) -> None:
    if as_json:
        write_json({**msgspec.to_builtins(found), "behind": found.behind, "same": found.same})
    else:
        _show_bytes(found)
    if not found.same:
        raise typer.Exit(exit_codes.PROBLEM)


def _show_bytes(found: LogDiff) -> None:
    if found.examples:
        made = table("Where the logs differ", "from", "to", "bytes", "A", "B", right=("from", "to", "bytes"))
        for each in found.examples:
            where = each.where
            absent = {side: "no file" if where.missing == side else "no record" for side in ("a", "b")}
            add_row(
                made, where.start, where.stop, where.count, _message(each.a, absent["a"]), _message(each.b, absent["b"])
            )
        show(made)
    begins = found.b_range[0] - found.a_range[0]
    if begins:
        write(f"{'B' if begins > 0 else 'A'} begins {format_size(abs(begins))} later: deleted sooner there\n")
    if found.behind:
        write(f"{'B' if found.behind > 0 else 'A'} is {abs(found.behind)} bytes behind\n")
    if found.first is None:
        write(f"{found.compared} bytes are equal; the logs are {'the same' if found.same else 'different'}.\n")
    else:
        write(f"{found.differing} of {found.compared} bytes differ, the first at {found.first}.\n")
    write(f"A: {found.a}\nB: {found.b}\n")


def _message(message: LogMessage | None, absent: str) -> str:
    if message is None:
        return absent
    return f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset} (at {message.physical_offset})"
