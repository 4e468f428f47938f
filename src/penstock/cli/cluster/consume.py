"""`penstock consume`: prints the messages of a topic of a running cluster, those that are there and those to come.

Without a group no offsets change: the stored messages of all queues are printed in the order in which they were stored,
then, with --follow, new ones as they arrive. With a group the command is one more member of it: it shares the queues
with the other members, and what it has printed is consumed.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import re
import string
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Final, TypeAlias

import typer

from penstock.cli.cluster.message import write_messages
from penstock.cli.cluster_connection import (
    Call,
    Topic,
    check_topic_exists,
    named,
    over_network,
    parse_moment,
)
from penstock.cli.options import NoBody, number
from penstock.cli.output import flush, plain, write, write_note
from penstock.cli.suggestions import did_you_mean
from penstock.client.message import ReceivedMessage
from penstock.client.pull_consumer import PullConsumer
from penstock.client.pull_requests import PullStatus
from penstock.client.push_consumer import PushConsumer, PushOptions
from penstock.errors import BadRequest, BadSettings, NoAnswer, NoRoute, Refused, Unreachable
from penstock.human_units import format_time
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.subscription import EVERYTHING

_GROUP: Final = "TOOLS_CONSUMER"
_START, _END = "start", "end"
_POLL_S: Final = 5.0
_RETRY_S: Final = 1.0
_CLOSE_S: Final = 0.3


def parse_start(text: str) -> str | int:
    """Parses `start`, `end` or a time. Returns a time as epoch milliseconds."""
    return text if text in (_START, _END) else parse_moment(text)


Start: TypeAlias = Annotated[
    str,
    named("--from", metavar="start|end|TIME", meaning="Where to begin; default: start, of a group its offsets."),
]


@over_network
async def consume(
    call: Call,
    topic: Topic,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new messages until Ctrl-C.")] = False,
    group: Annotated[
        str | None,
        named("--group", "-g", metavar="G", meaning="Consume as a member of this group; implies --follow."),
    ] = None,
    begin: Start = _START,
    tags: Annotated[
        str, named("--tags", metavar="EXPR", meaning="Only these tags, as in 'paid || refunded'.")
    ] = EVERYTHING,
    count: Annotated[int | None, number("--count", "N", "End after N messages.", low=1)] = None,
    template: Annotated[
        str | None, named("--format", metavar="TEXT", meaning="Print this for each message, as in '{offset} {body}'.")
    ] = None,
    no_body: NoBody = False,
) -> None:
    """Print the messages of a topic.

    Those of all queues, in the order in which they were stored. No group's offsets change unless --group is given.
    Fields of --format: body, topic, tag, keys, broker, queue, offset, id, time, born, size, retries, properties, and
    property.NAME for one of them; \\t and \\n are a tab and a new line.

    Examples:

    \b
      penstock consume orders
      penstock consume orders -f --from end
      penstock consume orders --group warehouse --json
      penstock consume orders --format '{offset}\\t{tag}\\t{body}' --count 10
    """
    printer = _Printer(call, None if template is None else Template(template), count, body=not no_body)
    start = parse_start(begin)
    await check_topic_exists(call, topic)
    if group is not None:
        await _consume_as_member(call, topic, group, start, tags, printer)
        return
    queues = await call.admin.offsets.queues(topic)
    ends = {queue: await call.admin.offsets.max_offset(queue) for queue in queues}
    async with aclosing(_stored(call, ends, start, tags)) as messages:
        async for message in messages:
            if not printer.print(message):
                return
    flush()
    if follow:
        await _follow(call, topic, ends, tags, printer)


# -- printing --


class _Printer:
    """Prints messages up to a number of them."""

    def __init__(self, call: Call, template: Template | None, count: int | None, *, body: bool) -> None:
        if call.as_json and template is not None:
            raise typer.BadParameter("give --json or --format, not both")
        self._call = call
        self._template = template
        self._left = count
        self._body = body

    def print(self, message: ReceivedMessage) -> bool:
        """Prints a message. Returns whether more are wanted."""
        if self._template is None:
            write_messages(self._call, [message], body=self._body)
        else:
            write(f"{self._template.fill(message)}\n")
        if self._left is not None:
            self._left -= 1
        return self._left != 0


def _body_text(message: ReceivedMessage) -> str:
    try:
        return message.body.decode(errors="backslashreplace")
    except BadRequest:  # it cannot be decompressed
        return message.record.body.decode(errors="backslashreplace")


_FIELDS: Final[dict[str, Callable[[ReceivedMessage], object]]] = {
    "body": _body_text,
    "topic": lambda message: message.topic,
    "tag": lambda message: message.tags,
    "keys": lambda message: " ".join(message.keys),
    "broker": lambda message: message.broker_name,
    "queue": lambda message: message.queue_id,
    "offset": lambda message: message.queue_offset,
    "id": lambda message: message.msg_id,
    "time": lambda message: format_time(message.store_timestamp),
    "born": lambda message: format_time(message.born_timestamp),
    "size": lambda message: message.size,
    "retries": lambda message: message.reconsume_times,
    "properties": lambda message: json.dumps(message.properties, sort_keys=True),
}
_PROPERTY: Final = "property."


class Template:
    """The text of --format. Raises BadSettings for a field that does not exist."""

    def __init__(self, text: str) -> None:
        escapes = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
        text = re.sub(r"\\[nt\\]", lambda match: escapes[match[0]], text)
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise BadSettings(f"--format cannot be read: {error}; write {{{{ for a brace") from None
        self._parts: list[tuple[str, Callable[[ReceivedMessage], object] | None, str]] = []
        for literal, name, width, conversion in parts:
            self._parts.append((literal, None if name is None else _field(name), width or ""))
            if conversion or "{" in (width or ""):
                raise BadSettings(f"--format: '{name}' may have a width, as in {{offset:>8}}, but nothing else")

    def fill(self, message: ReceivedMessage) -> str:
        """Returns the text for a message. At a terminal, characters that would control it are escaped."""
        pieces: list[str] = []
        terminal = sys.stdout.isatty()
        for literal, field, width in self._parts:
            value = "" if field is None else field(message)
            try:
                text = format(plain(value) if terminal and isinstance(value, str) else value, width)
            except ValueError as error:
                raise BadSettings(
                    f"--format has a width that cannot be used ({error}); write one as in {{offset:>8}}"
                ) from None
            pieces += (literal, text)
        return "".join(pieces)


def _field(name: str) -> Callable[[ReceivedMessage], object]:
    if name.startswith(_PROPERTY):
        key = name.removeprefix(_PROPERTY)
        return lambda message: message.properties.get(key, "")
    if name not in _FIELDS:
        raise BadSettings(f"--format has no field '{name}'; {did_you_mean(name, _FIELDS, 'penstock consume --help')}")
    return _FIELDS[name]


# -- without a group --


async def _stored(
    call: Call, ends: dict[MessageQueue, int], start: str | int, tags: str
) -> AsyncGenerator[ReceivedMessage]:
    """Yields the messages of queues up to their ends, by store time. It keeps one page of each queue in memory."""
    pages = [_of_queue(call, queue, start, end, tags) for queue, end in ends.items()]
    heads: list[tuple[int, int, int, ReceivedMessage]] = []
    for turn, messages in enumerate(pages):
        if (message := await anext(messages, None)) is not None:
            heads.append((message.store_timestamp, message.physical_offset, turn, message))
    heapq.heapify(heads)
    while heads:
        _, _, turn, message = heads[0]
        yield message
        following = await anext(pages[turn], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.store_timestamp, following.physical_offset, turn, following))


async def _of_queue(
    call: Call, queue: MessageQueue, start: str | int, end: int, tags: str
) -> AsyncIterator[ReceivedMessage]:
    offsets = call.admin.offsets
    if start == _END:
        return
    at = await offsets.min_offset(queue)
    if isinstance(start, int):
        at = max(at, await offsets.offset_by_time(queue, start, boundary="lower"))
    while at < end:
        page = await call.admin.messages.page(queue, at, expression=tags)
        for message in page.messages:
            if message.queue_offset < end and (not isinstance(start, int) or message.store_timestamp >= start):
                yield message
        if page.status is PullStatus.NO_NEW_MSG or page.next_offset <= at:
            return
        at = page.next_offset


async def _follow(call: Call, topic: str, ends: dict[MessageQueue, int], tags: str, printer: _Printer) -> None:
    """Prints new messages as they arrive. Goes on after a lost connection, and with queues that are added."""
    async with PullConsumer(_GROUP, call.config) as consumer:
        await consumer.queues(topic)  # so that the consumer knows the brokers
        consumer.assign(ends, expression=tags)
        for queue, end in ends.items():
            consumer.seek(queue, end)
        problem = ""
        while True:
            try:
                messages = await consumer.poll(_POLL_S)
                if not messages:
                    await _add_queues(call, topic, consumer, tags)
                problem = ""
            except (Unreachable, NoAnswer, NoRoute, Refused) as error:
                if not problem:
                    write_note(f"{error}; trying again.")
                problem = str(error)
                await asyncio.sleep(_RETRY_S)
                continue
            for message in messages:
                if not printer.print(message):
                    return
            flush()


async def _add_queues(call: Call, topic: str, consumer: PullConsumer, tags: str) -> None:
    known = set(consumer.assigned)
    added = set(await call.admin.offsets.queues(topic)) - known
    if added:
        consumer.assign(known | added, expression=tags)
        for queue in added:
            consumer.seek(queue, 0)


# -- as a member of a group --


async def _consume_as_member(
    call: Call, topic: str, group: str, start: str | int, tags: str, printer: _Printer
) -> None:
    """Joins the group, and prints messages until enough are printed. A message is consumed when it is printed."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[ReceivedMessage, asyncio.Future[None]]] = asyncio.Queue()

    async def hand_over(message: ReceivedMessage) -> None:
        printed: asyncio.Future[None] = loop.create_future()
        waiting.put_nowait((message, printed))
        await printed

    options = PushOptions(
        consume_from={_START: "first", _END: "last"}.get(start, start) if isinstance(start, str) else start,  # type: ignore[arg-type]
        max_in_flight=1,
        close_timeout_s=_CLOSE_S,
    )
    async with PushConsumer(group, hand_over, call.config, subscriptions={topic: tags}, options=options):
        more = True
        while more:
            message, printed = await waiting.get()
            more = printer.print(message)
            flush()
            printed.set_result(None)
