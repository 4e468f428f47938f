"""The group `penstock message`: messages of a running cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.message_find import at_offset, by_id, by_key, by_unique_key
from penstock.cli.message_look import consume, print_queue, print_topic
from penstock.cli.network import Call, Topic, Truth, named, over_network, told
from penstock.cli.options import help_if_alone
from penstock.cli.output import add_row, show, table, write_json
from penstock.client.message import Message
from penstock.client.producer import Producer

app = typer.Typer(rich_markup_mode=None)
_PRODUCER = "TOOLS_PRODUCER"


@app.callback(invoke_without_command=True)
def message(context: typer.Context) -> None:
    """Messages of a running cluster: send, look at, find.

    Examples:

    \b
      penstock message send -t orders -p 'two shirts' -k order_1
      penstock message by-key -t orders -k order_1
    """
    help_if_alone(context)


@over_network
async def send(
    call: Call,
    topic: Topic,
    body: Annotated[str, named("--body", "-p", metavar="TEXT", meaning="The body, as UTF-8.")],
    keys: Annotated[
        str, named("--keys", "-k", "--key", metavar="KEYS", meaning="Keys to find it by, with spaces between.")
    ] = "",
    tags: Annotated[str, named("--tags", "-c", metavar="TAG", meaning="Its tag.")] = "",
    broker_name: Annotated[
        str | None, named("--broker-name", "-b", "--broker", metavar="NAME", meaning="The broker to send it to.")
    ] = None,
    queue_id: Annotated[
        int | None, named("--queue", "-i", "--qid", metavar="N", meaning="The queue to send it to.")
    ] = None,
    sharding_key: Annotated[str, named("--sharding-key", metavar="KEY", meaning="Its queue is that of this key.")] = "",
    delay_level: Annotated[int, named("--delay", metavar="LEVEL", meaning="Its delay level.")] = 0,
    trace: Annotated[
        Truth, told("--trace", "-m", "--msgTraceEnable", meaning="As mqadmin has it; no trace is sent.")
    ] = Truth.FALSE,
) -> None:
    """Sends one message.

    Examples:

    \b
      penstock message send -t orders -p 'two shirts' --keys order_1 --tags paid
    """
    made = Message(topic, body.encode(), tags=tags, keys=keys, sharding_key=sharding_key, delay_level=delay_level)
    async with Producer(_PRODUCER, call.config) as producer:
        queue = None
        if broker_name is not None or queue_id is not None:
            queues = [
                each
                for each in await producer.queues(topic)
                if broker_name in (None, each.broker_name) and queue_id in (None, each.queue_id)
            ]
            if not queues:
                raise typer.BadParameter(
                    f"topic {topic} has no such queue; see those it has with `penstock topic status`"
                )
            queue = queues[0]
        result = await producer.send(made, queue=queue)
    if call.as_json:
        write_json(
            {
                "status": result.status.value,
                "msg_id": result.msg_id,
                "offset_msg_id": result.offset_msg_id,
                "broker_name": result.queue.broker_name,
                "queue_id": result.queue.queue_id,
                "queue_offset": result.queue_offset,
            }
        )
        return
    shown = table("", "status", "broker", "queue", "offset", "id", right=("queue", "offset"))
    add_row(shown, result.status, result.queue.broker_name, result.queue.queue_id, result.queue_offset, result.msg_id)
    show(shown)


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
