"""The commitlog, straight from its files: every record in log order, fillers and damage included.

Neither queues nor index are needed, and recovery's cut hides nothing. An unwritten place ends the log; if something
follows in a later file after all, that place is looked at again (a writer may have filled it meanwhile) and what is
still missing is damage. While a writer owns the store, broken bytes with nothing behind them are a record on its way
into the log, not damage.


`penstock store log`: the commitlog as it lies on disk.

`penstock store dump`, `get`, `query` and `offset`: messages as a start would serve them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final, TypeAlias

import typer

from penstock.cli.options import (
    LONG_MAX,
    AsJson,
    Config,
    Folder,
    NoBody,
    Pairs,
    QueueId,
    Topic,
    number,
    open_view,
    option,
    say_state,
)
from penstock.cli.output import QueueReader, message_line, message_object, say, write, write_json, write_message
from penstock.format import kernels
from penstock.format.record import Record, decode_record
from penstock.format.rows import Reason
from penstock.format.scan import Blank, Damage, ScanBatch, scan
from penstock.store import Boundary, MessageStore
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MAX_MISSING_IN_A_ROW, MappedFileQueue
from penstock.store.readonly.geometry import fit_to_log
from penstock.store.readonly.store_folder import StoreFolder

Found: TypeAlias = tuple[Record, int] | Blank | Damage
"""A record with its tags code, or what is no record."""
_ROWS = 1024


class LogFilesReader:
    """Reads all log files that are there when it is made; they stay mapped as long as it is used."""

    def __init__(self, place: StoreFolder) -> None:
        self._delay_levels = place.settings.delay_levels
        self._live = bool(place.owner)
        self._queue = place.retrying(lambda: _load(place))

    def __iter__(self) -> Iterator[Found]:
        unfinished: list[tuple[MappedFile, int]] = []
        for file in self._queue.files:
            position = 0
            for item, behind in self._scan(file, 0, live=self._live):
                for earlier, start in unfinished:
                    yield from self._rest(earlier, start)
                unfinished, position = [], behind
                yield item
            if position < file.size:
                unfinished.append((file, position))

    def _rest(self, file: MappedFile, position: int) -> Iterator[Found]:
        """The log goes on behind a file that seemed to be its end: what it holds by now, and what is missing."""
        for item, behind in self._scan(file, position, live=False):
            position = behind
            yield item
        if position < file.size:
            yield Damage(file.from_offset + position, file.size - position, Reason.UNWRITTEN)

    def _scan(self, file: MappedFile, start: int, *, live: bool) -> Iterator[tuple[Found, int]]:
        """What lies in a file from `start` on, each with the position behind it."""
        data, base = file.map.view, file.from_offset
        waiting: Damage | None = None
        for item in scan(data, base, start, file.size, check_crc=True, live=live, rows_per_batch=_ROWS):
            if waiting is not None:
                yield waiting, waiting.position + waiting.size - base
                waiting = None
            if isinstance(item, ScanBatch):
                kernels.tag_codes(data, base, item.rows, self._delay_levels)
                for offset, size, code in item.rows[["physical_offset", "size", "tags_code"]].tolist():
                    yield (decode_record(data, offset - base), code), offset + size - base
            elif isinstance(item, Damage) and live:
                waiting = item
            else:
                yield item, item.position + item.size - base


def _load(place: StoreFolder) -> MappedFileQueue:
    size = fit_to_log(place.settings, place.files, place.layout).mapped_file_size_commit_log
    queue = MappedFileQueue(place.files, place.layout.commit_log, size)
    queue.map_files(queue.listing(max_missing=MAX_MISSING_IN_A_ROW).offsets)
    return queue


def log(
    folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False, no_body: NoBody = False
) -> None:
    """Every record of the log, in log order.

    Read straight from the commitlog's files, whatever queues, index and recovery make of them: records of every topic,
    also prepared and rolled back ones, the fillers at the ends of files, and damage, with the reason.

    Examples:

    \b
      penstock store log data/store
      penstock store log data/store --no-body --json
    """
    place = StoreFolder.find(folder, config, pairs)
    found = LogFilesReader(place)
    say_state(place, "what follows is the log as it lies in the files")
    for item in found:
        if isinstance(item, Blank | Damage):
            _write_other(item, as_json)
        else:
            write_message(*item, as_json=as_json, body=not no_body)


def _write_other(item: Blank | Damage, as_json: bool) -> None:
    kind = "blank" if isinstance(item, Blank) else "damage"
    reason = Reason.BLANK if isinstance(item, Blank) else item.reason
    if as_json:
        write_json({"kind": kind, "physical_offset": item.position, "size": item.size, "reason": reason.name})
    else:
        write(f"{kind}  at {item.position}  {item.size} bytes  {reason.name}\n")


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
