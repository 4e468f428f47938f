"""The group `penstock offset`: offsets of queues and consumer groups."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import msgspec
import typer

from penstock.cli.cluster_connection import (
    IGNORED,
    Call,
    Group,
    Topic,
    Truth,
    boolean,
    check_group_exists,
    check_topic_exists,
    named,
    note_if_missing,
    over_network,
    parse_moment,
)
from penstock.cli.confirmation import Yes, confirm
from penstock.cli.options import DryRun, Name, VerbGroup, help_if_alone
from penstock.cli.output import add_row, show, table, write, write_json
from penstock.console.cached_cluster import ClusterView
from penstock.console.cluster_commands import ClusterCommands, QueueMove
from penstock.errors import BadSettings
from penstock.human_units import format_time
from penstock.protocol.bodies.queues import MessageQueue

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)
_END = -1


@app.callback(invoke_without_command=True)
def offset(context: typer.Context) -> None:
    """Offsets of queues and groups: show, reset, set.

    Examples:

    \b
      penstock offset show orders
      penstock offset reset warehouse orders -s 2026-01-31T00:00:00
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
      penstock offset show orders -g warehouse
      penstock offset show orders --at 2026-01-31T00:00:00
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
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Reset a group's offsets to a point in time; consumers may stay connected.

    TIME is now, milliseconds, 2026-01-31T23:59:59 or mqadmin's 2026-01-31#23:59:59:999. Shows what would be delivered
    again or skipped, and asks at a terminal.

    Examples:

    \b
      penstock offset reset warehouse orders --to 2026-01-31T00:00:00 --dry-run
      penstock offset reset warehouse orders --to 2026-01-31T00:00:00
      penstock offset reset warehouse orders --to -1
    """
    await _reset(call, group, topic, to, force=bool(force), yes=yes, dry_run=dry_run)


@over_network
async def skip(
    call: Call,
    group: Group,
    topic: Topic,
    force: Annotated[Truth, boolean("--force", "-f", meaning="Also move forwards; default: true.")] = Truth.TRUE,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Skip all unconsumed messages of a group.

    Shows what would be skipped, and asks at a terminal.

    Examples:

    \b
      penstock offset skip warehouse orders --dry-run
      penstock offset skip warehouse orders
    """
    await _reset(call, group, topic, _END, force=bool(force), yes=yes, dry_run=dry_run)


async def _reset(call: Call, group: str, topic: str, to: int, *, force: bool, yes: bool, dry_run: bool) -> None:
    """Shows the effect of a reset, asks, and resets."""
    await check_topic_exists(call, topic)
    await check_group_exists(call, group)
    if _has_preview(call, yes, dry_run):
        moves = await ClusterCommands(ClusterView(call.admin), call.config).preview_reset(group, topic, to)
        _show_moves(call, [each if force or each.skipped == 0 else _unmoved(each) for each in moves])
    if dry_run:
        return
    await confirm(f"Reset the offsets of group {group} in topic {topic}?", yes)
    _write_moved(call, await call.admin.offsets.reset(group, topic, to, force=force))


def _unmoved(move: QueueMove) -> QueueMove:
    """Returns the effect in a queue whose offset stays, because it would move forwards."""
    return replace(move, target=move.target if move.current is None else move.current, skipped=0)


async def _move(call: Call, group: str, queue: MessageQueue, target: int) -> QueueMove:
    """Returns the effect of a new offset of a group in one queue."""
    current = await call.admin.offsets.committed(group, queue, exact=True)
    at = target if current is None else max(current, await call.admin.offsets.min_offset(queue))
    return QueueMove(
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        current=current,
        target=target,
        repeated=max(0, at - target),
        skipped=max(0, target - at),
    )


def _has_preview(call: Call, yes: bool, dry_run: bool) -> bool:
    """Whether the effect is shown: if that is all that was asked for, or before the question at a terminal."""
    return dry_run or (sys.stdin.isatty() and not yes and not call.as_json)


def _show_moves(call: Call, moves: list[QueueMove]) -> None:
    if call.as_json:
        write_json([msgspec.to_builtins(each) for each in moves])
        return
    columns = ("queue", "offset", "new offset", "delivered again", "skipped")
    shown = table("", "broker", *columns, right=columns)
    for each in moves:
        current = "-" if each.current is None else each.current
        add_row(shown, each.broker, each.queue_id, current, each.target, each.repeated, each.skipped)
    repeated, skipped = sum(each.repeated for each in moves), sum(each.skipped for each in moves)
    show(shown, f"{repeated} messages would be delivered again, {skipped} skipped")


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
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Store one offset of a group that is not running.

    Shows what would be delivered again or skipped, and asks at a terminal.

    Examples:

    \b
      penstock offset set warehouse orders -b broker-a -i 0 --to 1000 --dry-run
      penstock offset set warehouse orders -b broker-a -i 0 --to 1000
    """
    await check_topic_exists(call, topic)
    await check_group_exists(call, group)
    queue = MessageQueue(broker_name=broker_name, queue_id=queue_id, topic=topic)
    if queue not in await call.admin.offsets.queues(topic):
        raise BadSettings(
            f"topic '{topic}' has no queue {queue_id} at broker '{broker_name}'; see `penstock topic status`"
        )
    if _has_preview(call, yes, dry_run):
        _show_moves(call, [await _move(call, group, queue, to)])
    if dry_run:
        return
    await confirm(f"Set the offset of group {group} in queue {queue_id} of topic {topic}?", yes)
    await call.admin.offsets.commit(group, queue, to)
    _write_moved(call, {queue: to})


@over_network
async def clone(
    call: Call,
    source: Annotated[
        str, named("--from", "-s", "--srcGroup", metavar="G", meaning="The group to copy from."), Name("FROM")
    ],
    target: Annotated[
        str, named("--to", "-d", "--destGroup", metavar="G", meaning="The group to copy to."), Name("TO")
    ],
    topic: Topic,
    offline: Annotated[Truth, boolean("--offline", "-o", meaning="Require both to be offline.")] = Truth.FALSE,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Copy a topic's offsets from one group to another.

    Shows what the other group would get again or skip, and asks at a terminal.

    Examples:

    \b
      penstock offset clone warehouse warehouse-2 orders --dry-run
      penstock offset clone warehouse warehouse-2 orders
    """
    await check_topic_exists(call, topic)
    await check_group_exists(call, source)
    if _has_preview(call, yes, dry_run):
        offsets = call.admin.offsets
        copied = {each: await offsets.committed(source, each, exact=True) for each in await offsets.queues(topic)}
        _show_moves(call, [await _move(call, target, queue, at) for queue, at in copied.items() if at is not None])
    if dry_run:
        return
    await confirm(f"Copy the offsets of group {source} in topic {topic} to group {target}?", yes)
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
