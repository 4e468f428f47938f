"""`diff`, for `penstock`, `penstock pipeline` and `penstock store`: compares the messages or the logs of two stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Folder, Pairs, number, option
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.verbs_on_spark import EitherCall, JobCall, MaybeNamesrv, check_input, either_way, job_input, on_spark
from penstock.human_units import format_size

if TYPE_CHECKING:
    from penstock.pipeline.jobs.diff import Diff, LogDiff, Sides
    from penstock.pipeline.jobs.diff.log_bytes import LogMessage
    from penstock.pipeline.jobs.diff.report import MessagePosition, QueueDiff
    from penstock.pipeline.jobs.job_input import JobInput

_MAX_SHOWN: Final = 20

Other = Annotated[
    Path | None, typer.Argument(metavar="[OTHER]", help="The other store's directory.", show_default=False)
]
By = Annotated[str, option("--by", "WAY", "place (topic, queue, offset; the default), key, or bytes (of the logs).")]
Topics = Annotated[list[str] | None, option("--topic", "T", "Only this topic; repeatable.")]
Broker = Annotated[str, option("--broker", "NAME", "The broker, if the cluster has several.")]
UpToEnd = Annotated[
    bool, typer.Option("--up-to-common-end", help="Ignore what only one side has at its end (a slave behind).")
]
Limit = Annotated[int, number("--limit", "N", "How many examples to print.", low=0, default=True)]


@on_spark
def diff(
    call: JobCall,
    folder: Folder,
    other: Other = None,
    namesrv: MaybeNamesrv = "",
    broker: Broker = "",
    by: By = "place",
    topics: Topics = None,
    up_to_common_end: UpToEnd = False,
    limit: Limit = _MAX_SHOWN,
) -> None:
    """Compare two stores, or a store and a cluster.

    By place: messages of the same topic, queue and offset; one without a counterpart is looked up by its unique key. By
    key: the place does not matter, for replayed messages. By bytes: two logs that should be equal, as those of a master
    and its slave. Messages that retention deleted on one side are reported, but are not a difference. Exit status 0:
    same; 1: different; 2: could not run.

    Examples:

    \b
      penstock pipeline diff data/store backup/store
      penstock pipeline diff master/store slave/store --by bytes --up-to-common-end
      penstock pipeline diff data/store --namesrv 127.0.0.1:9876 --topic orders
    """
    from penstock.pipeline.jobs import diff as job

    b = call.input([str(other)] if other else None, namesrv)
    sides = _sides(call.input([str(folder)]), b, by, topics, broker, up_to_common_end)
    with call.session("diff", light_java=True) as spark:
        result: Diff | LogDiff = job.diff_bytes(spark, sides, limit) if by == "bytes" else job.diff(spark, sides, limit)
    if not call.as_json and other is not None:
        write_note(f"for small stores, `penstock diff {folder} {other}` prints the same at once")
    _report(result, call.as_json)


@either_way
def diff_stores(
    call: EitherCall,
    folder: Folder,
    other: Other = None,
    by: By = "place",
    topics: Topics = None,
    up_to_common_end: UpToEnd = False,
    limit: Limit = _MAX_SHOWN,
) -> None:
    """Compare two stores.

    By place: messages of the same topic, queue and offset; one without a counterpart is looked up by its unique key. By
    key: the place does not matter, for replayed messages. By bytes: two logs that should be equal. Runs in this process
    if the logs are small, and otherwise on Spark; stderr says which. `penstock pipeline diff` compares with a cluster.
    Exit status 0: same; 1: different; 2: could not run.

    Examples:

    \b
      penstock diff data/store backup/store
      penstock diff master/store slave/store --by bytes --up-to-common-end
    """
    from penstock.pipeline.jobs import diff as job

    a, b = call.input([str(folder)]), call.input([str(other)] if other else None)
    sides = _sides(a, b, by, topics, "", up_to_common_end)
    result: Diff | LogDiff
    if call.uses_spark("diff", [*a.folders().values(), *b.folders().values()]):
        with call.session("diff", light_java=True) as spark:
            result = job.diff_bytes(spark, sides, limit) if by == "bytes" else job.diff(spark, sides, limit)
    else:
        result = job.diff_bytes_here(sides, limit) if by == "bytes" else job.diff_here(sides, limit)
    _report(result, call.as_json)


def diff_here(
    folder: Folder,
    other: Other = None,
    by: By = "place",
    topics: Topics = None,
    up_to_common_end: UpToEnd = False,
    limit: Limit = _MAX_SHOWN,
    as_json: AsJson = False,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Compare two stores.

    The same as `penstock pipeline diff`, in this process and without Spark. Exit status 0: same; 1: different; 2: could
    not run.

    Examples:

    \b
      penstock store diff data/store backup/store
      penstock store diff master/store slave/store --by bytes --json
    """
    from penstock.pipeline.jobs import diff as job

    b = job_input([str(other)] if other else None, "", config, pairs)
    sides = _sides(job_input([str(folder)], "", config, pairs), b, by, topics, "", up_to_common_end)
    _report(job.diff_bytes_here(sides, limit) if by == "bytes" else job.diff_here(sides, limit), as_json)


def _sides(
    a: JobInput, b: JobInput, by: str, topics: Sequence[str] | None, broker: str, up_to_common_end: bool
) -> Sides:
    """Returns both sides of the comparison. Checks them before anything is read."""
    from penstock.pipeline.jobs.diff import Sides

    if not b.stores and not b.namesrv:
        raise typer.BadParameter("compare with what? Give the directory of another store, or --namesrv HOST:PORT")
    if b.stores and b.namesrv:
        raise typer.BadParameter(f"compare with {b.stores[0]} or with {b.namesrv}? Give one of them")
    sides = Sides(a=a, b=b, by=by, topics=tuple(topics or ()), broker=broker, up_to_common_end=up_to_common_end)
    sides.check()
    check_input(sides.a)
    check_input(sides.b)
    return sides


def _report(result: Diff | LogDiff, as_json: bool) -> None:
    """Prints the result. Sets exit status 1 if the sides differ."""
    from penstock.pipeline.jobs.diff import Diff

    if isinstance(result, Diff):
        write_json(_document(result)) if as_json else _show(result)
    elif as_json:
        write_json({**msgspec.to_builtins(result), "behind": result.behind, "same": result.same})
    else:
        _show_bytes(result)
    if not result.same:
        raise typer.Exit(exit_codes.PROBLEM)


# -- messages --------------------------------------------------------------------------------------------------------


def _document(result: Diff) -> dict[str, Any]:
    queues = [
        {**msgspec.to_builtins(queue), "behind": queue.behind, "begins_later": queue.begins_later}
        for queue in result.queues
    ]
    return {**msgspec.to_builtins(result), "same": result.same, "queues": queues}


def _show(result: Diff) -> None:
    from penstock.pipeline.jobs.diff.report import KINDS

    unequal = [queue for queue in result.queues if queue.counts or queue.one_sided]
    if unequal:
        shown = [kind for kind in KINDS if result.count(kind)]
        names = [kind.replace("_a", " in A").replace("_b", " in B").replace("_", " ") for kind in shown]
        grid = table("Queues that differ", "topic", "queue", "same", *names, "", right=("queue", "same", *names))
        for queue in unequal[:_MAX_SHOWN]:
            counts = [queue.counts.get(kind, 0) for kind in shown]
            add_row(grid, queue.topic, queue.queue_id, queue.same, *counts, _only(queue))
        show(grid)
        if len(unequal) > _MAX_SHOWN:
            write(f"and {len(unequal) - _MAX_SHOWN} more; --json lists all\n")
    if result.examples:
        grid = table("First differences", "", "topic", "A: queue, offset", "B: queue, offset", "unique key", "")
        for each in result.examples:
            add_row(grid, each.kind.split("_")[0], each.topic, _spot(each.a), _spot(each.b), each.unique_key, each.what)
        show(grid)
    _show_ends(result)
    write(f"{sum(queue.same for queue in result.queues)} messages are the same at the same place; ")
    write("A and B are the same.\n" if result.same else "A and B are different.\n")
    write(f"A: {result.a}\nB: {result.b}\n")


def _only(queue: QueueDiff) -> str:
    if not queue.one_sided:
        return ""
    side, there = ("A", queue.a) if queue.b is None else ("B", queue.b)
    return "" if there is None else f"only in {side}: {there[1] - there[0]} messages"


def _show_ends(result: Diff) -> None:
    if result.by == "key":
        return
    for side, sign in (("B", 1), ("A", -1)):
        later = [queue.begins_later * sign for queue in result.queues if queue.begins_later * sign > 0]
        if later:
            write(f"{side} starts later in {len(later)} queues: {sum(later)} messages already deleted there\n")
        behind = [queue.behind * sign for queue in result.queues if queue.behind * sign > 0]
        if behind:
            write(f"{side} is {sum(behind)} messages behind, in {len(behind)} queues\n")


def _spot(spot: MessagePosition | None) -> str:
    return "-" if spot is None else f"{spot.queue_id}, {spot.queue_offset}"


# -- bytes -----------------------------------------------------------------------------------------------------------


def _show_bytes(result: LogDiff) -> None:
    if result.examples:
        grid = table("Where the logs differ", "from", "to", "bytes", "A", "B", right=("from", "to", "bytes"))
        for each in result.examples:
            where = each.where
            absent = {side: "no file" if where.missing == side else "no record" for side in ("a", "b")}
            add_row(
                grid, where.start, where.stop, where.count, _message(each.a, absent["a"]), _message(each.b, absent["b"])
            )
        show(grid)
    begins = result.b_range[0] - result.a_range[0]
    if begins:
        write(f"{'B' if begins > 0 else 'A'} starts {format_size(abs(begins))} later: already deleted there\n")
    if result.behind:
        write(f"{'B' if result.behind > 0 else 'A'} is {abs(result.behind)} bytes behind\n")
    if result.first is None:
        write(f"{result.compared} bytes are equal; the logs are {'the same' if result.same else 'different'}.\n")
    else:
        write(f"{result.differing} of {result.compared} bytes differ, the first at {result.first}.\n")
    write(f"A: {result.a}\nB: {result.b}\n")


def _message(message: LogMessage | None, absent: str) -> str:
    if message is None:
        return absent
    return f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset} (at {message.physical_offset})"
