"""`penstock message consume`, `print` and `print-queue`: messages of a topic, queue by queue. No group notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, TypeAlias

import msgspec
import typer

from penstock.cli.messages import message_line, message_object
from penstock.cli.network import Call, Topic, Truth, moment_of, named, over_network, say_if_new, told
from penstock.cli.options import LONG_MAX, NoBody
from penstock.cli.output import add_row, say, show, table, write, write_json
from penstock.client.fetch import PullStatus
from penstock.client.message import ReceivedMessage
from penstock.errors import BadRequest
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.subscription import EVERYTHING

BrokerName: TypeAlias = Annotated[
    str, named("--broker-name", "-b", "--brokerName", metavar="NAME", meaning="The queue's broker.")
]
QueueId: TypeAlias = Annotated[int, named("--queue", "-i", "--queueId", metavar="N", meaning="The queue's id.")]
Begin: TypeAlias = Annotated[
    int | None,
    named("--begin", "-b", "--beginTimestamp", metavar="TIME", meaning="Stored from this time on.", parser=moment_of),
]
End: TypeAlias = Annotated[
    int | None,
    named("--end", "-e", "--endTimestamp", metavar="TIME", meaning="Stored up to this time.", parser=moment_of),
]
Tags: TypeAlias = Annotated[
    str,
    named("--tags", "-s", "--subExpression", metavar="EXPR", meaning="Only these tags, as in 'paid || refunded'."),
]
Charset: TypeAlias = Annotated[
    str | None,
    named("--charset", "-c", "--charsetName", metavar="NAME", meaning="As mqadmin has it; text is taken for UTF-8."),
]
WithBody: TypeAlias = Annotated[Truth, told("--body", "-d", "--printBody", meaning="With bodies; true unless given.")]


def write_messages(call: Call, messages: list[ReceivedMessage], *, body: bool = True) -> None:
    for each in messages:
        if call.as_json:
            place = {"broker_name": each.broker_name} if each.broker_name else {}
            write_json({**message_object(each.record, each.record.tags_code, body=body), **place})
            continue
        record = each.record
        try:
            record = msgspec.structs.replace(record, body=each.body)
        except BadRequest as error:
            say(f"the body of {each.msg_id} is shown as it is stored: {error}")
        write(f"{message_line(record, body=body)}  id {each.msg_id}\n")


async def queues_of(call: Call, topic: str, broker_name: str | None, queue_id: int | None) -> list[MessageQueue]:
    await say_if_new(call, topic)
    found = [
        queue
        for queue in await call.admin.offsets.queues(topic)
        if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not found:
        raise typer.BadParameter(f"topic {topic} has no such queue; see those it has with `penstock topic status`")
    return found


async def _between(
    call: Call, queue: MessageQueue, begin: int | None, end: int | None, first: int | None, tags: str
) -> AsyncIterator[list[ReceivedMessage]]:
    """The messages of a queue that were stored between two times, page by page, up to where it ends now."""
    offsets = call.admin.offsets
    last = await offsets.max_offset(queue)
    at = first or 0
    if first is None and begin is not None:
        at = await offsets.offset_by_time(queue, begin, boundary="lower")
    at = max(at, await offsets.min_offset(queue))
    while at < last:
        page = await call.admin.messages.page(queue, at, expression=tags)
        if page.status is PullStatus.NO_NEW_MSG or page.next_offset <= at:
            return
        inside = [
            each
            for each in page.messages
            if each.queue_offset < last and (begin or 0) <= each.store_timestamp <= (LONG_MAX if end is None else end)
        ]
        if inside:
            yield inside
        if end is not None and page.messages and page.messages[-1].store_timestamp > end:
            return
        at = page.next_offset


@over_network
async def consume(
    call: Call,
    topic: Topic,
    broker_name: Annotated[
        str | None, named("--broker-name", "-b", "--brokerName", metavar="NAME", meaning="Only this broker's queues.")
    ] = None,
    queue_id: Annotated[
        int | None, named("--queue", "-i", "--queueId", metavar="N", meaning="Only queues with this id.")
    ] = None,
    offset: Annotated[int | None, named("--offset", "-o", metavar="N", meaning="From this queue offset on.")] = None,
    begin: Annotated[
        int | None,
        named(
            "--begin", "-s", "--beginTimestamp", metavar="TIME", meaning="Stored from this time on.", parser=moment_of
        ),
    ] = None,
    end: End = None,
    most: Annotated[
        int, named("--max", "-c", "--MessageNumber", metavar="N", meaning="At most so many messages.")
    ] = 128,
    group: Annotated[
        str | None,
        named(
            "--group",
            "-g",
            "--consumerGroup",
            metavar="G",
            meaning="As mqadmin has it; no group's offsets are touched.",
        ),
    ] = None,
    no_body: NoBody = False,
) -> None:
    """Looks at messages of a topic, queue by queue; no group notices.

    Examples:

    \b
      penstock message consume -t orders --max 10
      penstock message consume -t orders -b broker-a -i 0 -o 100 --json
    """
    left = most
    for queue in await queues_of(call, topic, broker_name, queue_id):
        async for page in _between(call, queue, begin, end, offset, EVERYTHING):
            write_messages(call, page[:left], body=not no_body)
            left -= len(page[:left])
            if left <= 0:
                return


@over_network
async def print_topic(
    call: Call,
    topic: Topic,
    tags: Tags = EVERYTHING,
    begin: Begin = None,
    end: End = None,
    body: WithBody = Truth.TRUE,
    charset: Charset = None,
) -> None:
    """All messages of a topic, queue by queue, between two times.

    Examples:

    \b
      penstock message print -t orders --begin 2026-01-31T00:00:00 --json > orders.jsonl
    """
    for queue in await queues_of(call, topic, None, None):
        async for page in _between(call, queue, begin, end, None, tags):
            write_messages(call, page, body=bool(body))


@over_network
async def print_queue(
    call: Call,
    topic: Topic,
    broker_name: Annotated[
        str, named("--broker-name", "-a", "--brokerName", metavar="NAME", meaning="The queue's broker.")
    ],
    queue_id: QueueId,
    tags: Tags = EVERYTHING,
    begin: Begin = None,
    end: End = None,
    messages: Annotated[Truth, told("--print", "-p", meaning="Show the messages; true unless given.")] = Truth.TRUE,
    body: WithBody = Truth.TRUE,
    by_tag: Annotated[
        Truth, told("--by-tag", "-f", "--calculate", meaning="How many there are of each tag.")
    ] = Truth.FALSE,
    charset: Charset = None,
) -> None:
    """The messages of one queue between two times, and how many there are of each tag.

    Examples:

    \b
      penstock message print-queue -t orders -a broker-a -i 0 --by-tag true --print false
    """
    (queue,) = await queues_of(call, topic, broker_name, queue_id)
    counts: dict[str, int] = {}
    async for page in _between(call, queue, begin, end, None, tags):
        for each in page:
            counts[each.tags] = counts.get(each.tags, 0) + 1
        if messages:
            write_messages(call, page, body=bool(body))
    if not by_tag:
        return
    if call.as_json:
        write_json({"tags": counts})
        return
    shown = table("", "tag", "messages", right=("messages",))
    for tag, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        add_row(shown, tag or "-", count)
    show(shown)
