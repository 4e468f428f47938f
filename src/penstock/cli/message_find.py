"""`penstock message by-id`, `by-key`, `by-unique-key` and `at`: single messages."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from penstock.cli.message_look import Begin, BrokerName, End, QueueId, queues_of, write_messages
from penstock.cli.network import Call, MaybeTopic, Topic, Truth, named, over_network, say_if_new, told
from penstock.cli.options import LONG_MAX, NoBody
from penstock.cli.output import say, write, write_json
from penstock.client.message import ReceivedMessage

ConsumingGroup: TypeAlias = Annotated[
    str | None,
    named("--group", "-g", "--consumerGroup", metavar="G", meaning="Has a consumer of this group consume it."),
]
ConsumingClient: TypeAlias = Annotated[
    str | None, named("--client", "-d", "--clientId", metavar="ID", meaning="Which consumer.")
]


async def _write_or_consume(
    call: Call, found: list[ReceivedMessage], group: str | None, client: str | None, *, body: bool
) -> None:
    """Shows messages, or has one consumer consume them and shows what came of it."""
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
    msg_id: Annotated[str, named("--id", "-i", "--msgId", metavar="ID", meaning="An id, or several with commas.")],
    topic: MaybeTopic = None,
    group: ConsumingGroup = None,
    client: ConsumingClient = None,
    no_body: NoBody = False,
    resend: Annotated[
        Truth, told("--resend", "-s", "--sendMessage", meaning="As mqadmin has it; it is refused.")
    ] = Truth.FALSE,
    unit: Annotated[
        str | None, named("--unit", "-u", "--unitName", metavar="NAME", meaning="As mqadmin has it; changes nothing.")
    ] = None,
) -> None:
    """The message with an id: the broker's, or, with a topic, the producer's.

    Examples:

    \b
      penstock message by-id -i 7F00000100002A9F0000000000000000
      penstock message by-id -i 7F000001270F4A3D9C7B4D0C5A3B0000 -t orders
    """
    if resend:
        raise typer.BadParameter("messages are not sent again from here; send one with `penstock message send`")
    for each in filter(None, (piece.strip() for piece in msg_id.split(","))):
        found = await call.admin.messages.by_id(each, topic)
        if not found:
            say(f"there is no message {each}.")
        await _write_or_consume(call, found, group, client, body=not no_body)


@over_network
async def by_key(
    call: Call,
    topic: Topic,
    key: Annotated[str, named("--key", "-k", "--msgKey", metavar="KEY", meaning="A key of the messages.")],
    begin: Begin = None,
    end: End = None,
    most: Annotated[int, named("--max", "-m", "--maxNum", metavar="N", meaning="At most so many, the newest.")] = 64,
    no_body: NoBody = False,
) -> None:
    """Messages with a key, oldest first.

    Examples:

    \b
      penstock message by-key -t orders -k order_1
    """
    found = await call.admin.messages.by_key(
        topic, key, begin=begin or 0, end=LONG_MAX if end is None else end, max_messages=most
    )
    if not found:
        await say_if_new(call, topic)
        say(f"there is no message of topic {topic} with the key {key}.")
    write_messages(call, found, body=not no_body)


@over_network
async def by_unique_key(
    call: Call,
    topic: Topic,
    msg_id: Annotated[str, named("--id", "-i", "--msgId", metavar="ID", meaning="The id that the producer gave it.")],
    group: ConsumingGroup = None,
    client: ConsumingClient = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", "--showAll", help="Also if it was sent more than once.")
    ] = False,
    no_body: NoBody = False,
) -> None:
    """The message with the id that its producer gave it.

    Examples:

    \b
      penstock message by-unique-key -t orders -i 7F000001270F4A3D9C7B4D0C5A3B0000
    """
    found = await call.admin.messages.by_unique_id(topic, msg_id)
    if not found:
        say(f"there is no message {msg_id} in topic {topic}.")
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
    """The message at a queue offset.

    Examples:

    \b
      penstock message at -t orders -b broker-a -i 0 -o 42
    """
    (queue,) = await queues_of(call, topic, broker_name, queue_id)
    found = await call.admin.messages.at(queue, offset)
    if found is None:
        say(f"there is no message at offset {offset} of queue {queue_id}.")
    else:
        write_messages(call, [found], body=not no_body)
