"""The group `penstock message`: sends, prints and finds messages of a running cluster. It never changes offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, TypeAlias

import msgspec
import typer

from penstock.cli.cluster.produce import PRODUCER_GROUP, sent_json
from penstock.cli.cluster_connection import (
    IGNORED,
    Call,
    MaybeTopic,
    Topic,
    Truth,
    boolean,
    named,
    note_if_missing,
    over_network,
    parse_moment,
)
from penstock.cli.options import LONG_MAX, Name, NoBody, VerbGroup, help_if_alone
from penstock.cli.output import add_row, message_line, message_object, show, table, write, write_json, write_note
from penstock.client.message import Message, ReceivedMessage
from penstock.client.producer import Producer
from penstock.client.pull_requests import PullStatus
from penstock.errors import BadRequest
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.compression import MAX_SIZE
from penstock.protocol.subscription import EVERYTHING

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def message(context: typer.Context) -> None:
    """Messages: send, print, find.

    Examples:

    \b
      penstock message send orders 'two shirts' -k order_1
      penstock message by-key orders order_1
    """
    help_if_alone(context)


@over_network
async def send(
    call: Call,
    topic: Topic,
    body: Annotated[str, named("--body", "-p", metavar="TEXT", meaning="The body, as UTF-8."), Name("TEXT")],
    keys: Annotated[
        str, named("--keys", "-k", "--key", metavar="KEYS", meaning="Keys to find it by, separated by spaces.")
    ] = "",
    tags: Annotated[str, named("--tags", "-c", metavar="TAG", meaning="Its tag.")] = "",
    broker_name: Annotated[
        str | None, named("--broker-name", "-b", "--broker", metavar="NAME", meaning="The broker to send it to.")
    ] = None,
    queue_id: Annotated[
        int | None, named("--queue", "-i", "--qid", metavar="N", meaning="The queue to send it to.")
    ] = None,
    sharding_key: Annotated[str, named("--sharding-key", metavar="KEY", meaning="Chooses its queue by this key.")] = "",
    delay_level: Annotated[int, named("--delay", metavar="LEVEL", meaning="Its delay level.")] = 0,
    trace: Annotated[Truth, boolean("--trace", "-m", "--msgTraceEnable", meaning=IGNORED)] = Truth.FALSE,
) -> None:
    """Send one message.

    Examples:

    \b
      penstock message send orders 'two shirts' --keys order_1 --tags paid
    """
    outgoing = Message(topic, body.encode(), tags=tags, keys=keys, sharding_key=sharding_key, delay_level=delay_level)
    async with Producer(PRODUCER_GROUP, call.config) as producer:
        queue = None
        if broker_name is not None or queue_id is not None:
            queues = [
                each
                for each in await producer.queues(topic)
                if broker_name in (None, each.broker_name) and queue_id in (None, each.queue_id)
            ]
            if not queues:
                raise typer.BadParameter(f"topic {topic} has no such queue; see `penstock topic status`")
            queue = queues[0]
        result = await producer.send(outgoing, queue=queue)
    if call.as_json:
        write_json(sent_json(result))
        return
    shown = table("", "status", "broker", "queue", "offset", "id", right=("queue", "offset"))
    add_row(shown, result.status, result.queue.broker_name, result.queue.queue_id, result.queue_offset, result.msg_id)
    show(shown)


# -- printing --

BrokerName: TypeAlias = Annotated[
    str, named("--broker-name", "-b", "--brokerName", metavar="NAME", meaning="The queue's broker.")
]
QueueId: TypeAlias = Annotated[int, named("--queue", "-i", "--queueId", metavar="N", meaning="The queue's id.")]
Begin: TypeAlias = Annotated[
    int | None,
    named("--begin", "-b", "--beginTimestamp", metavar="TIME", meaning="Stored at or after.", parser=parse_moment),
]
End: TypeAlias = Annotated[
    int | None,
    named("--end", "-e", "--endTimestamp", metavar="TIME", meaning="Stored at or before.", parser=parse_moment),
]
Tags: TypeAlias = Annotated[
    str,
    named("--tags", "-s", "--subExpression", metavar="EXPR", meaning="Only these tags, as in 'paid || refunded'."),
]
Charset: TypeAlias = Annotated[
    str | None,
    named("--charset", "-c", "--charsetName", metavar="NAME", meaning=IGNORED),
]
WithBody: TypeAlias = Annotated[Truth, boolean("--body", "-d", "--printBody", meaning="Print bodies; default: true.")]


def write_messages(call: Call, messages: list[ReceivedMessage], *, body: bool = True) -> None:
    for each in messages:
        if call.as_json:
            broker = {"broker_name": each.broker_name} if each.broker_name else {}
            write_json({**message_object(each.record, each.record.tags_code, body=body), **broker})
            continue
        record = each.record
        try:
            record = msgspec.structs.replace(record, body=each.inflated(MAX_SIZE))
        except BadRequest as error:
            write_note(f"printing the body of {each.msg_id} as stored: {error}")
        write(f"{message_line(record, body=body)}  id {each.msg_id}\n")


async def queues_of(call: Call, topic: str, broker_name: str | None, queue_id: int | None) -> list[MessageQueue]:
    await note_if_missing(call, topic)
    found = [
        queue
        for queue in await call.admin.offsets.queues(topic)
        if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not found:
        raise typer.BadParameter(f"topic {topic} has no such queue; see `penstock topic status`")
    return found


async def _between(
    call: Call, queue: MessageQueue, begin: int | None, end: int | None, first: int | None, tags: str
) -> AsyncIterator[list[ReceivedMessage]]:
    """Yields the messages of a queue stored between two times, page by page, up to the queue's current end."""
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
    offset: Annotated[int | None, named("--offset", "-o", metavar="N", meaning="Start at this queue offset.")] = None,
    begin: Annotated[
        int | None,
        named(
            "--begin",
            "-s",
            "--beginTimestamp",
            metavar="TIME",
            meaning="Stored at or after.",
            parser=parse_moment,
        ),
    ] = None,
    end: End = None,
    max_messages: Annotated[
        int, named("--max", "-c", "--MessageNumber", metavar="N", meaning="At most N messages.")
    ] = 128,
    group: Annotated[
        str | None,
        named(
            "--group",
            "-g",
            "--consumerGroup",
            metavar="G",
            meaning=IGNORED,
        ),
    ] = None,
    no_body: NoBody = False,
) -> None:
    """Print messages of a topic without touching any group's offsets.

    Examples:

    \b
      penstock message consume orders --max 10
      penstock message consume orders -b broker-a -i 0 -o 100 --json
    """
    left = max_messages
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
    """Print all messages of a topic, queue by queue.

    Examples:

    \b
      penstock message print orders --begin 2026-01-31T00:00:00 --json > orders.jsonl
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
    messages: Annotated[Truth, boolean("--print", "-p", meaning="Print the messages; default: true.")] = Truth.TRUE,
    body: WithBody = Truth.TRUE,
    by_tag: Annotated[
        Truth, boolean("--by-tag", "-f", "--calculate", meaning="Count the messages of each tag.")
    ] = Truth.FALSE,
    charset: Charset = None,
) -> None:
    """Print the messages of one queue, and counts by tag.

    Examples:

    \b
      penstock message print-queue orders -a broker-a -i 0 --by-tag true --print false
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


# -- finding --

ConsumingGroup: TypeAlias = Annotated[
    str | None,
    named("--group", "-g", "--consumerGroup", metavar="G", meaning="Have a consumer of this group consume it."),
]
ConsumingClient: TypeAlias = Annotated[
    str | None, named("--client", "-d", "--clientId", metavar="ID", meaning="The consumer's client id.")
]


async def _write_or_consume(
    call: Call, found: list[ReceivedMessage], group: str | None, client: str | None, *, body: bool
) -> None:
    """Prints messages. With a group and a client, makes that consumer consume the messages and prints the results
    instead.
    """
    if group is None or client is None:
        write_messages(call, found, body=body)
        return
    for each in found:
        result = await call.admin.messages.consume_directly(group, client, each.offset_msg_id)
        outcome = "?" if result.consume_result is None else result.consume_result.value
        if call.as_json:
            write_json({"msg_id": each.msg_id, "result": outcome, "spent_ms": result.spent_time_mills})
        else:
            write(f"{each.msg_id}: {outcome} after {result.spent_time_mills} ms\n")


@over_network
async def by_id(
    call: Call,
    msg_id: Annotated[
        str, named("--id", "-i", "--msgId", metavar="ID", meaning="One or more ids, with commas."), Name("ID")
    ],
    topic: MaybeTopic = None,
    group: ConsumingGroup = None,
    client: ConsumingClient = None,
    no_body: NoBody = False,
    resend: Annotated[
        Truth, boolean("--resend", "-s", "--sendMessage", meaning="Not supported; rejected.")
    ] = Truth.FALSE,
    unit: Annotated[
        str | None,
        named("--unit", "-u", "--unitName", metavar="NAME", meaning=IGNORED),
    ] = None,
) -> None:
    """Find a message by the broker's id or, with --topic, the producer's id.

    Examples:

    \b
      penstock message by-id 7F00000100002A9F0000000000000000
      penstock message by-id 7F000001270F4A3D9C7B4D0C5A3B0000 -t orders
    """
    if resend:
        raise typer.BadParameter("--resend is not supported; send a message with `penstock message send`")
    for each in filter(None, (piece.strip() for piece in msg_id.split(","))):
        found = await call.admin.messages.by_id(each, topic)
        if not found:
            write_note(f"there is no message {each}.")
        await _write_or_consume(call, found, group, client, body=not no_body)


@over_network
async def by_key(
    call: Call,
    topic: Topic,
    key: Annotated[str, named("--key", "-k", "--msgKey", metavar="KEY", meaning="A key of the messages."), Name("KEY")],
    begin: Begin = None,
    end: End = None,
    max_messages: Annotated[int, named("--max", "-m", "--maxNum", metavar="N", meaning="At most N, the newest.")] = 64,
    no_body: NoBody = False,
) -> None:
    """Find messages by key, oldest first.

    Examples:

    \b
      penstock message by-key orders order_1
    """
    found = await call.admin.messages.by_key(
        topic, key, begin=begin or 0, end=LONG_MAX if end is None else end, max_messages=max_messages
    )
    if not found:
        await note_if_missing(call, topic)
        write_note(f"there is no message of topic {topic} with key {key}.")
    write_messages(call, found, body=not no_body)


@over_network
async def by_unique_key(
    call: Call,
    topic: Topic,
    msg_id: Annotated[str, named("--id", "-i", "--msgId", metavar="ID", meaning="The producer's id."), Name("ID")],
    group: ConsumingGroup = None,
    client: ConsumingClient = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", "--showAll", help="Print all, if it was sent more than once.")
    ] = False,
    no_body: NoBody = False,
) -> None:
    """Find a message by its producer's id.

    Examples:

    \b
      penstock message by-unique-key orders 7F000001270F4A3D9C7B4D0C5A3B0000
    """
    found = await call.admin.messages.by_unique_id(topic, msg_id)
    if not found:
        write_note(f"there is no message {msg_id} in topic {topic}.")
    await _write_or_consume(call, found if show_all else found[-1:], group, client, body=not no_body)


@over_network
async def at_offset(
    call: Call,
    topic: Topic,
    broker_name: BrokerName,
    queue_id: QueueId,
    offset: Annotated[int, named("--offset", "-o", metavar="N", meaning="The queue offset.")],
    no_body: NoBody = False,
) -> None:
    """Print the message at a queue offset.

    Examples:

    \b
      penstock message at orders -b broker-a -i 0 -o 42
    """
    (queue,) = await queues_of(call, topic, broker_name, queue_id)
    found = await call.admin.messages.at(queue, offset)
    if found is None:
        write_note(f"there is no message at offset {offset} of queue {queue_id}.")
    else:
        write_messages(call, [found], body=not no_body)


for verb, function in {
    "send": send,
    "consume": consume,
    "print": print_topic,
    "print-queue": print_queue,
    "by-id": by_id,
    "by-key": by_key,
    "by-unique-key": by_unique_key,
    "at": at_offset,
}.items():
    app.command(verb)(function)
