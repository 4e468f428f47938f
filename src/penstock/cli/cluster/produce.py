"""`penstock produce`: sends texts, files or the lines of stdin to a topic of a running cluster.

A limited number of sends is in flight at a time. The first send that fails ends the command; the sentence says how many
messages were sent, and of how many it is not known. With a sharding key there is one send at a time, so that the order
stays.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from itertools import count as numbers
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli import exit_codes
from penstock.cli.cluster_connection import Call, Topic, named, note_if_missing, over_network
from penstock.cli.options import Name, number
from penstock.cli.output import flush, write, write_json, write_note
from penstock.client.message import Message, SendResult
from penstock.client.producer import Producer, ProducerOptions
from penstock.errors import BadMessage, PenstockError

PRODUCER_GROUP: Final = "TOOLS_PRODUCER"
_IN_FLIGHT: Final = 100
_CHUNK: Final = 1 << 16
_MAX_BODY: Final = ProducerOptions().max_message_size


@over_network
async def produce(
    call: Call,
    topic: Topic,
    body: Annotated[
        str | None,
        named("--body", "-p", metavar="TEXT", meaning="Send this text, not the lines of stdin."),
        Name("TEXT"),
    ] = None,
    files: Annotated[
        list[Path] | None, named("--file", "-f", metavar="FILE", meaning="Send this file as one message; repeatable.")
    ] = None,
    headers: Annotated[
        list[str] | None,
        named("--header", "-H", metavar="NAME=VALUE", meaning="A property of the messages; repeatable."),
    ] = None,
    keys: Annotated[
        list[str] | None, named("--key", "-k", metavar="KEY", meaning="A key to find them by; repeatable.")
    ] = None,
    tag: Annotated[str, named("--tag", metavar="TAG", meaning="Their tag.")] = "",
    sharding_key: Annotated[
        str, named("--sharding-key", metavar="KEY", meaning="Send all to the queue of this key, in order.")
    ] = "",
    delay_level: Annotated[int, number("--delay", "LEVEL", "Their delay level, from 1 to 18.", low=0)] = 0,
    count: Annotated[
        int | None,
        number("--count", "N", "Send N messages: repeat text and files, end stdin after N lines.", low=1),
    ] = None,
    rate: Annotated[float | None, named("--rate", metavar="N", meaning="At most N messages per second.")] = None,
) -> None:
    """Send messages to a topic.

    Without a text or a file, each line of stdin becomes a message; empty lines are skipped. Exit status: 0 all sent; 1
    failed after some were sent; 2 nothing was sent; 130 interrupted.

    Examples:

    \b
      penstock produce orders 'two shirts' --key order_1 --tag paid
      penstock produce orders < orders.jsonl
      penstock produce orders --file picture.png -H type=image/png
      penstock produce orders 'a test' --count 1000 --rate 100
    """
    if body is not None and files:
        raise typer.BadParameter("give a text or --file, not both")
    if rate is not None and not rate > 0:
        raise typer.BadParameter(f"--rate {rate:g}: it must be above 0")
    template = Message(
        topic,
        b"",
        tags=tag,
        keys=tuple(keys or ()),
        properties=parse_headers(headers),
        sharding_key=sharding_key,
        delay_level=delay_level,
    )
    await note_if_missing(call, topic)
    sending = _Sending(call, template, rate, 1 if sharding_key else _IN_FLIGHT)
    try:
        async with Producer(PRODUCER_GROUP, call.config) as producer, aclosing(_bodies(body, files, count)) as bodies:
            await sending.send_all(producer, bodies)
    except PenstockError as error:
        if not sending.started:
            raise
        write_note(f"{sending.counts()}, then: {error}.")
        raise typer.Exit(exit_codes.PROBLEM if sending.sent else exit_codes.NOT_RUN) from None
    except asyncio.CancelledError:
        write_note(f"interrupted; {sending.counts()}.")
        raise
    sending.write_summary()


def parse_headers(headers: Sequence[str] | None) -> dict[str, str]:
    """Returns the properties of `NAME=VALUE` texts. Raises BadParameter."""
    properties = {}
    for each in headers or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"-H '{each}': it must be NAME=VALUE")
        properties[name] = value
    return properties


class _Sending:
    """Sends messages that differ only in their bodies, and counts them."""

    def __init__(self, call: Call, template: Message, rate: float | None, in_flight: int) -> None:
        self._call = call
        self._template = template
        self._rate = rate
        self._room = asyncio.Semaphore(in_flight)
        self._last: SendResult | None = None
        self.started = 0
        self.sent = 0

    async def send_all(self, producer: Producer, bodies: AsyncIterator[bytes]) -> None:
        """Sends all bodies. Raises the error of the first send that fails."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            async with asyncio.TaskGroup() as tasks:
                async for body in bodies:
                    if self._rate is not None:
                        await asyncio.sleep(begin + self.started / self._rate - loop.time())
                    await self._room.acquire()
                    message = _with_body(self._template, body)
                    self.started += 1
                    task = tasks.create_task(self._send(producer, message))
                    if (
                        self.started == 1
                    ):  # it finds the route and connects; sends that wait for it would lose their order
                        await asyncio.wait([task])
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send(self, producer: Producer, message: Message) -> None:
        self._last = result = await producer.send(message)
        self.sent += 1
        self._room.release()
        if self._call.as_json:
            write_json(sent_json(result))
            flush()

    def counts(self) -> str:
        unknown = self.started - self.sent
        return f"sent {_count(self.sent)}" + (f"; of {unknown} more it is not known" if unknown else "")

    def write_summary(self) -> None:
        if self._call.as_json:
            return
        result = self._last
        where = ""
        if result is not None and self.sent == 1:
            where = f", queue {result.queue.queue_id} of {result.queue.broker_name} at offset {result.queue_offset}"
        write(f"sent {_count(self.sent)} to topic {self._template.topic}{where}\n")


def _with_body(template: Message, body: bytes) -> Message:
    return Message(
        template.topic,
        body,
        tags=template.tags,
        keys=template.keys,
        properties=template.properties,
        sharding_key=template.sharding_key,
        delay_level=template.delay_level,
    )


def _count(messages: int) -> str:
    return f"{messages} message" if messages == 1 else f"{messages} messages"


def sent_json(result: SendResult) -> dict[str, Any]:
    """Returns the result of a send as a JSON object."""
    return {
        "status": result.status.value,
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "broker_name": result.queue.broker_name,
        "queue_id": result.queue.queue_id,
        "queue_offset": result.queue_offset,
    }


# -- bodies --


async def _bodies(text: str | None, files: Sequence[Path] | None, count: int | None) -> AsyncGenerator[bytes]:
    if text is None and not files:
        async with aclosing(_stdin_lines()) as lines:
            sent = numbers(1)
            async for line in lines:
                yield line
                if next(sent) == count:
                    return
        return
    given = [_read_file(each) for each in files or ()] if text is None else [text.encode()]
    for turn in range(count or len(given)):
        yield given[turn % len(given)]


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        body = file.read(_MAX_BODY + 1)
    if len(body) > _MAX_BODY:
        raise BadMessage(f"the file has more than {_MAX_BODY} bytes, the limit of one message", path=path)
    return body


async def _stdin_lines() -> AsyncGenerator[bytes]:
    """Yields the lines of stdin that are not empty, without their ends. Raises BadMessage for a line that is too long.

    A thread reads, because stdin may be a terminal, a pipe or a file. It is a daemon that reads past Python's buffers,
    so that an interrupt ends the program at once, even while the thread waits for input.
    """
    if sys.stdin.isatty():
        write_note("each line becomes a message; Ctrl-D ends.")
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(4)

    def read() -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = os.read(sys.stdin.fileno(), _CHUNK)
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (OSError, RuntimeError):  # stdin is closed, or the loop is
                return

    threading.Thread(target=read, name="penstock-stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > _MAX_BODY:
            raise BadMessage(f"a line of stdin has more than {_MAX_BODY} bytes, the limit of one message")
    if rest:
        yield rest
