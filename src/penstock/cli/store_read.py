"""`penstock store dump`, `get`, `query` and `offset`: messages as a start would serve them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from penstock.cli.messages import QueueReader, message_line, message_object, write_message
from penstock.cli.opening import open_view
from penstock.cli.options import LONG_MAX, AsJson, Config, Folder, NoBody, Pairs, QueueId, Topic, number, option
from penstock.cli.output import say, write, write_json
from penstock.store import Boundary, MessageStore

_TOPICS_NAMED: Final = 20


def dump(
    folder: Folder,
    topic: Annotated[str | None, option("--topic", "T", "Only this topic.")] = None,
    queue_id: Annotated[int | None, number("--queue", "N", "Only queues with this id.")] = None,
    begin: Annotated[int, number("--from", "N", "Only queue offsets from this on.")] = 0,
    limit: Annotated[int | None, number("--limit", "N", "At most so many messages.", low=0)] = None,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
    no_body: NoBody = False,
) -> None:
    """All messages, in the order of topic, queue and offset.

    Units whose record is gone or damaged are left out. With --json there is one object a line.

    Examples:

    \b
      penstock store dump data/store --topic orders --queue 0 --from 100 --limit 10
      penstock store dump data/store --json > messages.jsonl
    """
    with open_view(folder, config, pairs) as view:
        reader = QueueReader(view.store)
        queues = [
            queue for queue in view.store.queues if topic in (None, queue.topic) and queue_id in (None, queue.queue_id)
        ]
        if not queues:
            _say_what_is_there(view.store, topic, queue_id)
        found = (message for queue in queues for message in reader.messages(queue, begin))
        for record, code in islice(found, limit):
            write_message(record, code, as_json=as_json, body=not no_body)


def get(
    folder: Folder,
    topic: Topic,
    queue_id: QueueId,
    offset: Annotated[int, number("--offset", "N", "The queue offset to begin at.")],
    most: Annotated[int, number("--max", "N", "At most so many messages.", low=1, default=True)] = 32,
    tags: Annotated[str | None, option("--tags", "EXPR", "Only these tags, as in 'paid || refunded'.")] = None,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """One page of a queue, as a consumer would get it.

    Answers the status, where to go on, the queue's ends and the messages. A page also ends at the store's own limits
    (maxTransferCountOnMessageInMemory and its siblings). An unknown topic or queue is a status, not an error.

    Examples:

    \b
      penstock store get data/store --topic orders --queue 0 --offset 0
      penstock store get data/store --topic orders --queue 0 --offset 0 --tags 'paid || refunded' --json
    """
    with open_view(folder, config, pairs) as view:
        page = view.store.get(topic, queue_id, offset, most, tags)
        reader = QueueReader(view.store)
        if as_json:
            answer = {
                "status": page.status.value,
                "next_begin_offset": page.next_begin_offset,
                "min_offset": page.min_offset,
                "max_offset": page.max_offset,
                "messages": [message_object(record, reader.code_of(record)) for record in page.messages],
            }
            write_json(answer)
            return
        write(
            f"{page.status.value}: {len(page.records)} messages, go on at {page.next_begin_offset}; "
            f"the queue has {page.min_offset} to {page.max_offset}\n"
        )
        for record in page.messages:
            write(message_line(record) + "\n")


def query(
    folder: Folder,
    topic: Topic,
    key: Annotated[str, option("--key", "K", "A key of the message, or its unique id.")],
    begin: Annotated[int, number("--begin", "MS", "Stored at or after this time, in milliseconds.")] = 0,
    end: Annotated[int, number("--end", "MS", "Stored at or before this time, in milliseconds.")] = LONG_MAX,
    most: Annotated[int, number("--max", "N", "At most so many, the newest.", low=1, default=True)] = 32,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Messages with a key, through the index.

    Both times are included. Oldest first; with --json one object a line. No message is no error.

    Examples:

    \b
      penstock store query data/store --topic orders --key order_1
      penstock store query data/store --topic orders --key order_1 --begin 1600000000000 --max 5 --json
    """
    with open_view(folder, config, pairs, needs_index=True, max_msgs_num_batch=most) as view:
        reader = QueueReader(view.store)
        found = view.store.query(topic, key, begin, end, most)
        for record in found:
            write_message(record, reader.code_of(record), as_json=as_json)
        if not found and topic not in {queue.topic for queue in view.store.queues}:
            _say_what_is_there(view.store, topic)
        elif not found:
            say(f"the index has no message of {topic} with the key {key} at that time; keys are whole words, as sent.")


def _say_what_is_there(store: MessageStore, topic: str | None, queue_id: int | None = None) -> None:
    """To whom gets nothing: perhaps it is the name that is wrong."""
    there = sorted({queue.topic for queue in store.queues})
    if topic in there:
        ids = [queue.queue_id for queue in store.queues if queue.topic == topic]
        say(f"topic {topic} has no queue {queue_id}; it has {', '.join(map(str, sorted(ids)))}.")
        return
    more = f" and {len(there) - _TOPICS_NAMED} more" if len(there) > _TOPICS_NAMED else ""
    names = f"it has {', '.join(there[:_TOPICS_NAMED])}{more}" if there else "it has no topic"
    say(f"nothing in this store belongs to {topic or f'a queue {queue_id}'}; {names}.")


def offset(
    folder: Folder,
    topic: Topic,
    queue_id: QueueId,
    timestamp: Annotated[int, number("--timestamp", "MS", "The store time, in milliseconds.")],
    boundary: Annotated[
        Boundary, typer.Option("--boundary", help="Which message a time between two of them means.")
    ] = Boundary.NEAREST,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """The queue offset that belongs to a time.

    nearest: the closest message, the earlier of two; lower: the first at or after the time, else the queue's end;
    upper: the last at or before it, else the queue's beginning.

    Examples:

    \b
      penstock store offset data/store --topic orders --queue 0 --timestamp 1600000000000
      penstock store offset data/store --topic orders --queue 0 --timestamp 1600000000000 --boundary lower --json
    """
    with open_view(folder, config, pairs) as view:
        found = view.store.offset_by_time(topic, queue_id, timestamp, boundary)
        if as_json:
            write_json({"offset": found})
        else:
            write(f"{found}\n")
