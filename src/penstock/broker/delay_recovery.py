"""Finds in the log which delayed messages were delivered since delayOffset.json was last saved.

delayOffset.json is some seconds old after a kill. What was delivered since is in the log: a record in the real topic
with the body, properties and sender's fields of the delayed one. So a start searches the log from the offset at which
it ended when the file was saved, and each level goes on after the last message that it finds there.

`penstock/delivered.json` has that offset for each of the last few saves, with the table that was saved. It is written
before delayOffset.json. The entry whose table equals delayOffset.json is used, so a crash between the two files, or a
start from the backup, changes nothing. If there is none (RocketMQ saved the table), nothing is searched: the messages
of the last seconds are delivered again, as RocketMQ does. A slave writes the file, too: with each table that it copied,
the offset at which the master's log ended then. So a slave that becomes the master searches what it got since.

A log can be shorter than when a table was saved: a slave's log is cut where its master's parts from it, and its part
behind that may have had the deliveries. A table that rests on what is gone does not count (`roll_back`).

A wrong match would lose a message, so only what cannot be doubted counts. A record stands for one delayed message, even
if two are equal in every byte. All records behind the offset belong to messages that the table does not count, because
table and offset are taken together. A level delivers in order, so the first message that is not found ends the search.

The search reads at most MAX_BYTES of the log, and keeps at most MAX_FOUND digests. Whatever lies behind those limits is
delivered again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from penstock.format.constants import DELAY, HALF_TOPIC, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC
from penstock.format.properties import encode_properties
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.format.record import Record, decode_record
from penstock.format.scan import valid_rows
from penstock.format.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from penstock.format.topics import is_legal_topic
from penstock.store.commit_log import CommitLog
from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.message import Message
from penstock.store.message_store import MessageStore

MAX_BYTES: Final = 4 << 30
MAX_FOUND: Final = 500_000
_SAVES: Final = 4
"""Saves that are kept: the one before the last counts if its successor failed, and its successor, too."""
_UNITS: Final = 64
_QUEUE_ID: Final = re.compile(r"[0-9]{1,9}")
_REAL_TOPIC: Final = REAL_TOPIC.encode() + b"\x01"


class SavedProgress(msgspec.Struct, frozen=True):
    """A table of progress, and where the log ended at that moment."""

    offsets: tuple[tuple[int, int], ...]
    """Each level, in order, with the next queue offset to deliver."""
    log_end: int


_NEVER_SAVED: Final = SavedProgress((), 0)
"""The table before its first save: all deliveries lie behind the start of the log."""


class _Document(msgspec.Struct, frozen=True):
    saves: tuple[SavedProgress, ...]


class SaveNotes:
    """On which part of the log a table of progress rests: the file `penstock/delivered.json`, or one like it.

    `write` runs in the saving thread, all else on the loop.
    """

    def __init__(self, io: Files, path: Path) -> None:
        self._io = io
        self._path = path
        document = read_checksummed(self._io, self._path, _Document)
        self._saves = (_NEVER_SAVED,) if document is None else document.saves[-_SAVES:]
        self.is_written = True
        """Whether the file has all tables that were noted with `add`."""

    def log_end_of(self, offsets: Mapping[int, int]) -> int | None:
        """Returns where the log ended when this table was saved; None if that is unknown."""
        wanted = tuple(sorted(offsets.items()))
        return next((save.log_end for save in reversed(self._saves) if save.offsets == wanted), None)

    @property
    def last(self) -> Mapping[int, int]:
        """The table that was noted last."""
        return dict(self._saves[-1].offsets)

    def add(self, offsets: Mapping[int, int], log_end: int) -> None:
        """Notes a table that is about to be saved."""
        self._saves = (*self._saves, SavedProgress(tuple(sorted(offsets.items())), log_end))[-_SAVES:]
        self.is_written = False

    def roll_back(self, offsets: Mapping[int, int], log_end: int) -> dict[int, int] | None:
        """Forgets the tables that rest on a part of the log which is gone, because the log ends at `log_end`.

        `offsets` is the table that was read. Returns the table that holds instead, the newest one that rests on what is
        left; None if nothing is gone. Then the caller must save that table, and after it call `write`, before the log
        grows: once it has grown, no start can see that something is gone.
        """
        if not log_end and offsets:  # the whole store was moved aside, and these notes with it
            self._saves = (_NEVER_SAVED,)
            return {}
        kept = tuple(save for save in self._saves if save.log_end <= log_end)
        if len(kept) == len(self._saves):
            return None
        self._saves = kept or (_NEVER_SAVED,)
        return dict(offsets if self.log_end_of(offsets) is not None else self.last)

    def write(self) -> None:
        """Writes the file. Raises StoreFailed."""
        write_checksummed(self._io, self._path, _Document(self._saves))
        self.is_written = True


def deliverable(record: Record) -> Message | None:
    """Returns the message as it was sent, with the delay's properties as in RocketMQ; None if no topic can take it."""
    topic, queue_id = record.properties.get(REAL_TOPIC, ""), record.properties.get(REAL_QID, "")
    if topic == HALF_TOPIC or not is_legal_topic(topic) or not _QUEUE_ID.fullmatch(queue_id):
        return None
    return Message(
        topic,
        record.body,
        queue_id=int(queue_id),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
        property_text=encode_properties(record.properties).decode("utf-8", "surrogateescape"),
    )


def find_delivered(store: MessageStore, offsets: Mapping[int, int], begin: int, end: int) -> dict[int, int]:
    """Returns the next queue offset to deliver of each level of which [begin, end) of the log has delivered messages.

    `offsets` are the levels' positions when the log ended at `begin`. Reads the disk: run it in a thread. Raises
    StoreFailed.
    """
    found = Counter(
        _digest(message)
        for record in islice(_deliveries(store.log, begin, min(end, begin + MAX_BYTES)), MAX_FOUND)
        if (message := deliverable(record)) is not None
    )
    reached: dict[int, int] = {}
    for level in range(1, len(store.settings.delay_levels) + 1):
        if found and (position := _follow(store, level, offsets.get(level, 0), found)) is not None:
            reached[level] = position
    return reached


def _follow(store: MessageStore, level: int, first: int, found: Counter[bytes]) -> int | None:
    """Returns the queue offset after the last message from `first` on that was found; None if none was.

    Takes the found messages out of `found`.
    """
    queue = store.queues.find(SCHEDULE_TOPIC, level - 1)
    if queue is None or first < queue.min_offset:  # then the log may also have what was delivered before `first`
        return None
    offset, reached = first, None
    while found and (units := queue.page(offset, _UNITS)) is not None:
        for physical_offset, size, _ in units.tolist():
            offset += 1
            record = None if size == NO_RECORD_SIZE else store.look_up(physical_offset)
            message = None if record is None else deliverable(record)
            if message is None:
                continue  # delivery skipped it
            digest = _digest(message)
            if digest not in found:
                return reached
            found.subtract((digest,))
            if not found[digest]:
                del found[digest]
            reached = offset
    return reached


def _deliveries(log: CommitLog, begin: int, end: int) -> Iterator[Record]:
    """Yields the records of a range of the log that have the properties of a delivered message."""
    for file in log.queue.files:
        base = file.from_offset
        if not (base < end and begin < file.end_offset) or not file.acquire():
            continue
        try:
            start, stop = max(begin - base, 0), min(end - base, file.readable)
            file.map.ensure_resident(start, stop)
            view = file.map.view
            for rows in valid_rows(view, base, start, stop, check_crc=True, written=file.map.written_ranges):
                for at, size, length in zip(
                    (rows["physical_offset"] - base).tolist(),
                    rows["size"].tolist(),
                    rows["properties_length"].tolist(),
                    strict=True,
                ):
                    if _REAL_TOPIC in bytes(view[at + size - length : at + size]):
                        record = decode_record(bytes(view[at : at + size]))
                        if _is_delivery(record):
                            yield record
        finally:
            file.release()


def _is_delivery(record: Record) -> bool:
    own = record.properties
    return DELAY in own and own.get(REAL_TOPIC) == record.topic and own.get(REAL_QID) == str(record.queue_id)


def _digest(message: Message) -> bytes:
    """Returns a digest of all that a delivered message has in common with the delayed one."""
    fields = (
        message.topic,
        message.queue_id,
        message.flag,
        message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        message.born_timestamp,
        message.born_host,
        message.reconsume_times,
        message.property_text,
    )
    digest = hashlib.blake2b(repr(fields).encode("utf-8", "surrogatepass"), digest_size=16)
    digest.update(message.body)
    return digest.digest()
