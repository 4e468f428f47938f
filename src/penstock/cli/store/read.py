"""`penstock store log`, `dump`, `get`, `query` and `offset`: the verbs that print messages of a store.

`log` reads the commitlog files directly, without queues, index or recovery. It prints every record in log order, with
fillers and damage. The other verbs show the messages that a broker would serve after recovery.
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
    option,
)
from penstock.cli.output import message_line, message_object, write, write_json, write_message, write_note
from penstock.cli.readonly_store import note_state, open_readonly
from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.format.record import Record, decode_record, tags_code
from penstock.format.record_layout import belongs_to
from penstock.format.scan import Blank, Damage, ScanBatch, scan
from penstock.store import Boundary, MessageStore
from penstock.store.consume_queue import ConsumeQueue, QueueExtensions, unit_pages
from penstock.store.damage_and_quarantine import read_damage
from penstock.store.files.file_io import Files
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import MAX_MISSING_IN_A_ROW, MappedFileQueue
from penstock.store.readonly.infer_file_sizes import fit_to_log
from penstock.store.readonly.store_folder import StoreFolder

LogItem: TypeAlias = tuple[Record, int] | Blank | Damage
"""A record with its tags code, or a range of bytes that is not a record."""
_ROWS = 1024
_PAGE = 4096


class QueueReader:
    """Reads messages of queues, each with its tags code. Resolves codes that are in consume queue extension files."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        size = store.settings.mapped_file_size_consume_queue_ext
        self._extensions = QueueExtensions(Files(), store.layout.consume_queue_ext, size)

    def messages(self, queue: ConsumeQueue, begin: int) -> Iterator[tuple[Record, int]]:
        """Yields each message from a queue offset on, with its tags code. Skips units whose record is deleted or
        damaged.
        """
        topic = queue.topic.encode()
        for offset, units in unit_pages(queue, max(begin, queue.min_offset), queue.max_offset, _PAGE):
            codes = self._extensions.resolve(queue.topic, queue.queue_id, units["tags_code"]).tolist()
            for index, (physical, size, _) in enumerate(units.tolist()):
                data = None if size == NO_RECORD_SIZE else self._store.records.raw(physical, size)[0]
                if data is not None and belongs_to(data, topic, queue.queue_id, offset + index):
                    yield decode_record(data), codes[index]

    def code_of(self, record: Record) -> int:
        """Returns the tags code from a message's unit. Computes the code if the message has no unit."""
        queue = self._store.queues.find(record.topic, record.queue_id)
        unit = None if queue is None or record.queue_offset < 0 else queue.page(record.queue_offset, 1)
        if unit is None or int(unit["offset"][0]) != record.physical_offset:
            return tags_code(record, self._store.settings.delay_levels)
        return int(self._extensions.resolve(record.topic, record.queue_id, unit["tags_code"])[0])


class LogFilesReader:
    """Iterates over the log files that exist at construction. The files stay mapped while the reader is in use.

    The log ends at the first unwritten bytes. If a later file contains records, the unwritten bytes are scanned again,
    because a writer may have filled them in the meantime. Bytes that are still unwritten are then damage. While a
    writer owns the store, broken bytes at the end are a record being written, not damage.
    """

    def __init__(self, place: StoreFolder) -> None:
        self._delay_levels = place.settings.delay_levels
        self._live = bool(place.owner)
        self._known = {each.physical_offset: each for each in read_damage(place.files, place.layout.damaged)}
        self._queue = place.retrying(lambda: _load(place))

    def __iter__(self) -> Iterator[LogItem]:
        unfinished: list[tuple[MappedFile, int]] = []
        for file in self._queue.files:
            position = 0
            for item, end in self._scan(file, 0, live=self._live):
                for earlier, start in unfinished:
                    yield from self._rest(earlier, start)
                unfinished, position = [], end
                yield item
            if position < file.size:
                unfinished.append((file, position))

    def _rest(self, file: MappedFile, position: int) -> Iterator[LogItem]:
        """Yields the items of a file from `position`, where the log seemed to end. Unwritten bytes after them are
        damage.
        """
        for item, end in self._scan(file, position, live=False):
            position = end
            yield item
        if position < file.size:
            yield Damage(file.from_offset + position, file.size - position, Reason.UNWRITTEN)

    def _scan(self, file: MappedFile, start: int, *, live: bool) -> Iterator[tuple[LogItem, int]]:
        """Yields each item of a file from `start`, with the position after the item.

        A live scan ends before a batch in progress. Where `damaged.json` lists a range, there is none: it goes on.
        """
        data, base = file.map.view, file.from_offset
        pending: Damage | None = None
        passing = scan(
            data,
            base,
            start,
            file.size,
            check_crc=True,
            live=live,
            rows_per_batch=_ROWS,
            written=file.map.written_ranges,
        )
        for item in passing:
            if pending is not None:
                yield pending, pending.position + pending.size - base
                pending = None
            if isinstance(item, ScanBatch):
                kernels.tag_codes(data, base, item.rows, self._delay_levels)
                for offset, size, code in item.rows[["physical_offset", "size", "tags_code"]].tolist():
                    yield (decode_record(data, offset - base), code), offset + size - base
            elif isinstance(item, Damage) and live:
                pending = item
            else:
                yield item, item.position + item.size - base
        hole = self._known.get(passing.end) if live else None
        if hole is not None and hole.end <= base + file.size:
            yield Damage(hole.physical_offset, hole.size, Reason.UNWRITTEN), hole.end - base
            yield from self._scan(file, hole.end - base, live=True)


def _load(place: StoreFolder) -> MappedFileQueue:
    size = fit_to_log(place.settings, place.files, place.layout).mapped_file_size_commit_log
    queue = MappedFileQueue(place.files, place.layout.commit_log, size)
    queue.map_files(queue.listing(max_missing=MAX_MISSING_IN_A_ROW).offsets)
    return queue


def log(
    folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False, no_body: NoBody = False
) -> None:
    """Print every record of the log, in log order.

    Reads the commitlog files directly, whatever queues, index and recovery make of them: records of all topics,
    including prepared and rolled-back ones, the fillers that end files, and damage with its reason.

    Examples:

    \b
      penstock store log data/store
      penstock store log data/store --no-body --json
    """
    place = StoreFolder.find(folder, config, pairs)
    reader = LogFilesReader(place)
    note_state(place, "showing the log as it is on disk")
    for item in reader:
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


_MAX_TOPICS_LISTED: Final = 20


def dump(
    folder: Folder,
    topic: Annotated[str | None, option("--topic", "T", "Only this topic.")] = None,
    queue_id: Annotated[int | None, number("--queue", "N", "Only queues with this id.")] = None,
    begin: Annotated[int, number("--from", "N", "Start at this queue offset.")] = 0,
    limit: Annotated[int | None, number("--limit", "N", "At most N messages.", low=0)] = None,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
    no_body: NoBody = False,
) -> None:
    """Print all messages by topic, queue and offset.

    Skips units whose record is deleted or damaged. With --json, one object per line.

    Examples:

    \b
      penstock store dump data/store --topic orders --queue 0 --from 100 --limit 10
      penstock store dump data/store --json > messages.jsonl
    """
    with open_readonly(folder, config, pairs) as view:
        reader = QueueReader(view.store)
        queues = [
            queue for queue in view.store.queues if topic in (None, queue.topic) and queue_id in (None, queue.queue_id)
        ]
        if not queues:
            _note_existing(view.store, topic, queue_id)
        messages = (message for queue in queues for message in reader.messages(queue, begin))
        for record, code in islice(messages, limit):
            write_message(record, code, as_json=as_json, body=not no_body)


def get(
    folder: Folder,
    topic: Topic,
    queue_id: QueueId,
    offset: Annotated[int, number("--offset", "N", "The queue offset to start at.")],
    max_messages: Annotated[int, number("--max", "N", "At most N messages.", low=1, default=True)] = 32,
    tags: Annotated[str | None, option("--tags", "EXPR", "Only these tags, as in 'paid || refunded'.")] = None,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Print one page of a queue, as a consumer would get it.

    The status, the next offset, the queue's minimum and maximum, and the messages. The store's own limits apply
    (maxTransferCountOnMessageInMemory and its siblings). An unknown topic or queue is a status, not an error.

    Examples:

    \b
      penstock store get data/store --topic orders --queue 0 --offset 0
      penstock store get data/store --topic orders --queue 0 --offset 0 --tags 'paid || refunded' --json
    """
    with open_readonly(folder, config, pairs) as view:
        page = view.store.get(topic, queue_id, offset, max_messages, tags)
        reader = QueueReader(view.store)
        if as_json:
            document = {
                "status": page.status.value,
                "next_begin_offset": page.next_begin_offset,
                "min_offset": page.min_offset,
                "max_offset": page.max_offset,
                "messages": [message_object(record, reader.code_of(record)) for record in page.messages],
            }
            write_json(document)
            return
        write(
            f"{page.status.value}: {len(page.records)} messages, next offset {page.next_begin_offset}; "
            f"the queue has {page.min_offset} to {page.max_offset}\n"
        )
        for record in page.messages:
            write(message_line(record) + "\n")


def query(
    folder: Folder,
    topic: Topic,
    key: Annotated[str, option("--key", "K", "A key of the message, or its unique key.")],
    begin: Annotated[int, number("--begin", "MS", "Stored at or after this time, in milliseconds.")] = 0,
    end: Annotated[int, number("--end", "MS", "Stored at or before this time, in milliseconds.")] = LONG_MAX,
    max_messages: Annotated[int, number("--max", "N", "At most N, the newest.", low=1, default=True)] = 32,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Find messages by key, through the index.

    Both times are inclusive. Oldest first; with --json, one object per line. No match is not an error.

    Examples:

    \b
      penstock store query data/store --topic orders --key order_1
      penstock store query data/store --topic orders --key order_1 --begin 1600000000000 --max 5 --json
    """
    with open_readonly(folder, config, pairs, needs_index=True, max_msgs_num_batch=max_messages) as view:
        reader = QueueReader(view.store)
        records = view.store.query(topic, key, begin, end, max_messages)
        for record in records:
            write_message(record, reader.code_of(record), as_json=as_json)
        if not records and topic not in {queue.topic for queue in view.store.queues}:
            _note_existing(view.store, topic)
        elif not records:
            write_note(f"no message of {topic} with key {key} in that time; a key is matched as a whole.")


def _note_existing(store: MessageStore, topic: str | None, queue_id: int | None = None) -> None:
    """Prints the existing topics or queues to stderr if the requested one does not exist."""
    topics = sorted({queue.topic for queue in store.queues})
    if topic in topics:
        ids = [queue.queue_id for queue in store.queues if queue.topic == topic]
        write_note(f"topic {topic} has no queue {queue_id}; it has {', '.join(map(str, sorted(ids)))}.")
        return
    more = f" and {len(topics) - _MAX_TOPICS_LISTED} more" if len(topics) > _MAX_TOPICS_LISTED else ""
    names = f"it has {', '.join(topics[:_MAX_TOPICS_LISTED])}{more}" if topics else "it has no topic"
    write_note(f"this store has no {f'topic {topic}' if topic else f'queue {queue_id}'}; {names}.")


def offset(
    folder: Folder,
    topic: Topic,
    queue_id: QueueId,
    timestamp: Annotated[int, number("--timestamp", "MS", "The store time, in milliseconds.")],
    boundary: Annotated[
        Boundary, typer.Option("--boundary", help="Which message to choose for a time between two.")
    ] = Boundary.NEAREST,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Print the queue offset for a store time.

    nearest: the closest message, the earlier of two; lower: the first at or after the time, or the queue's end; upper:
    the last at or before it, or the queue's minimum.

    Examples:

    \b
      penstock store offset data/store --topic orders --queue 0 --timestamp 1600000000000
      penstock store offset data/store --topic orders --queue 0 --timestamp 1600000000000 --boundary lower --json
    """
    with open_readonly(folder, config, pairs) as view:
        result = view.store.offset_by_time(topic, queue_id, timestamp, boundary)
        if as_json:
            write_json({"offset": result})
        else:
            write(f"{result}\n")
