"""The group `penstock offset`: offsets of queues and consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.cluster_connection import (
    IGNORED,
    Call,
    Group,
    Topic,
    Truth,
    boolean,
    named,
    note_if_missing,
    over_network,
    parse_moment,
)
from penstock.cli.options import help_if_alone
from penstock.cli.output import add_row, show, table, write, write_json
from penstock.protocol.bodies.queues import MessageQueue
from penstock.units import format_time

app = typer.Typer(rich_markup_mode=None)
_END = -1


@app.callback(invoke_without_command=True)
def offset(context: typer.Context) -> None:
    """Offsets of queues and groups: show, reset, set.

    Examples:

    \b
      penstock offset show -t orders
      penstock offset reset -g warehouse -t orders -s 2026-01-31T00:00:00
    """
    help_if_alone(context)


@over_network
async def show_offsets(
    call: Call,
    topic: Topic,
    group: Annotated[str | None, named("--group", "-g", metavar="G", meaning="Show this group's offsets, too.")] = None,
    at: Annotated[
        int | None,
        named("--at", "-s", metavar="TIME", meaning="Show the offset at this time.", parser=parse_moment),
    ] = None,
) -> None:
    """Minimum and maximum offset of each queue, and its oldest message.

    Examples:

    \b
      penstock offset show -t orders -g warehouse
      penstock offset show -t orders --at 2026-01-31T00:00:00
    """
    rows = []
    await note_if_missing(call, topic)
    for queue in await call.admin.offsets.queues(topic):
        offsets = call.admin.offsets
        row: dict[str, object] = {
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": await offsets.min_offset(queue),
            "max_offset": await offsets.max_offset(queue),
            "earliest_timestamp": await offsets.earliest_time(queue),
        }
        if at is not None:
            row["offset_at"] = await offsets.offset_by_time(queue, at)
        if group is not None:
            row["committed"] = await offsets.committed(group, queue, exact=True)
        rows.append(row)
    if call.as_json:
        write_json(rows)
        return
    columns = ["min offset", "max offset", *(["at that time"] if at is not None else []), *(["group"] if group else [])]
    shown = table("", "broker", "queue", *columns, "oldest message", right=("queue", *columns))
    for row in rows:
        extra = [row[name] for name in ("offset_at", "committed") if name in row]
        earliest = row["earliest_timestamp"]
        assert isinstance(earliest, int)
        cells = [row["broker_name"], row["queue_id"], row["min_offset"], row["max_offset"]]
        add_row(shown, *cells, *("-" if each is None else each for each in extra), format_time(earliest))
    show(shown)


@over_network
async def reset(
    call: Call,
    group: Group,
    topic: Topic,
    to: Annotated[
        int,
        named(
            "--to",
            "-s",
            "--timestamp",
            metavar="TIME",
            meaning="The point in time; -1: the end.",
            parser=parse_moment,
        ),
    ],
    force: Annotated[Truth, boolean("--force", "-f", meaning="Also move forwards; default: true.")] = Truth.TRUE,
    cplus: Annotated[bool, typer.Option("--cplus", "-c", help=IGNORED)] = False,
) -> None:
    """Reset a group's offsets to a point in time; consumers may stay connected.

    TIME is now, milliseconds, 2026-01-31T23:59:59 or mqadmin's 2026-01-31#23:59:59:999.

    Examples:

    \b
      penstock offset reset -g warehouse -t orders --to 2026-01-31T00:00:00
      penstock offset reset -g warehouse -t orders --to -1
    """
    _write_moved(call, await call.admin.offsets.reset(group, topic, to, force=bool(force)))


@over_network
async def skip(
    call: Call,
    group: Group,
    topic: Topic,
    force: Annotated[Truth, boolean("--force", "-f", meaning="Also move forwards; default: true.")] = Truth.TRUE,
) -> None:
    """Skip all unconsumed messages of a group.

    Examples:

    \b
      penstock offset skip -g warehouse -t orders
    """
    _write_moved(call, await call.admin.offsets.reset(group, topic, _END, force=bool(force)))


def _write_moved(call: Call, moved: dict[MessageQueue, int]) -> None:
    if call.as_json:
        write_json(
            [
                {"broker_name": queue.broker_name, "queue_id": queue.queue_id, "offset": offset}
                for queue, offset in moved.items()
            ]
        )
        return
    shown = table("", "broker", "queue", "next offset", right=("queue", "next offset"))
    for queue, offset in moved.items():
        add_row(shown, queue.broker_name, queue.queue_id, offset)
    show(shown)


@over_network
async def set_offset(
    call: Call,
    group: Group,
    topic: Topic,
    broker_name: Annotated[str, named("--broker-name", "-b", metavar="NAME", meaning="The queue's broker.")],
    queue_id: Annotated[int, named("--queue", "-i", metavar="N", meaning="The queue's id.")],
    to: Annotated[int, named("--to", "-o", metavar="N", meaning="The new offset.")],
) -> None:
    """Store one offset of a group that is not running.

    Examples:

    \b
      penstock offset set -g warehouse -t orders -b broker-a -i 0 --to 1000
    """
    queue = MessageQueue(broker_name=broker_name, queue_id=queue_id, topic=topic)
    await call.admin.offsets.commit(group, queue, to)
    _write_moved(call, {queue: to})


@over_network
async def clone(
    call: Call,
    source: Annotated[str, named("--from", "-s", "--srcGroup", metavar="G", meaning="The group to copy from.")],
    target: Annotated[str, named("--to", "-d", "--destGroup", metavar="G", meaning="The group to copy to.")],
    topic: Topic,
    offline: Annotated[Truth, boolean("--offline", "-o", meaning="Require both to be offline.")] = Truth.FALSE,
) -> None:
    """Copy a topic's offsets from one group to another.

    Examples:

    \b
      penstock offset clone --from warehouse --to warehouse-2 -t orders
    """
    await call.admin.offsets.clone(source, target, topic, offline=bool(offline))
    if call.as_json:
        write_json({"from": source, "to": target, "topic": topic})
    else:
        write(f"copied offsets of topic {topic} from group {source} to group {target}\n")


for verb, function in {
    "show": show_offsets,
    "reset": reset,
    "skip": skip,
    "set": set_offset,
    "clone": clone,
}.items():
    app.command(verb)(function)
