"""A small store with something of everything and nothing wrong, and the places in its files where faults are planted.

    store = SoundStore.make(folder)
    store.write(store.log_path(record.offset), 0, b"...")

Several log, queue and index files; single messages and batches, tags, keys that share a hash and a slot, delays,
prepared, committed and rolled back records, IPv6 hosts; every config file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.format import kernels
from penstock.format.config_tables import (
    ConsumerFilters,
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    Topics,
)
from penstock.format.index_layout import IndexHeader
from penstock.store import Message, MessageStore, Settings
from penstock.store.config_files import ConfigFiles
from penstock.store.files import Files

T0 = 1_600_000_000_000
LOG_SIZE = 16_384
UNITS_PER_FILE = 9
SLOTS, ITEMS = 50, 150
SETTINGS = Settings.dev(
    mapped_file_size_commit_log=LOG_SIZE,
    mapped_file_size_consume_queue=20 * UNITS_PER_FILE,
    max_hash_slot_num=SLOTS,
    max_index_num=ITEMS,
    max_message_size=4096,
).with_changes(max_hash_slot_num=SLOTS, max_index_num=ITEMS)
OPTIONS = ("--set", f"maxHashSlotNum={SLOTS}", "--set", f"maxIndexNum={ITEMS}")
"""What the command line must be told: an index file does not say its geometry."""

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
TOPICS = ("orders", "Alerts", "%RETRY%group")
ONCE = "once"
"""A topic with a single message, the log's first."""
PLAIN = "plain"
"""A topic whose messages have neither keys nor tags."""


class Spot(NamedTuple):
    """A record and where it lies."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    type: int
    body_at: int
    topic_at: int
    properties_at: int


def some_messages() -> Iterator[Message | list[Message]]:
    """Single ones and batches."""
    yield Message(ONCE, b"only one")
    for number in range(240):
        topic = TOPICS[number % len(TOPICS)]
        body = bytes([number]) * (17 * number % 400)
        queue_id = number % 2
        if number % 10 == 3:
            yield [Message(PLAIN, body), Message(PLAIN, b""), Message(PLAIN, b"batch", queue_id=1)]
        elif number % 10 == 5:
            yield Message(topic, body, keys=(f"t{number}",), sys_flag=(PREPARED, COMMIT, ROLLBACK)[number % 3])
        elif number % 20 == 7:
            yield Message(topic, body, tags="late", keys=(f"d{number}",), delay_level=3)
        else:
            host = "[::1]:9" if number % 7 == 0 else "127.0.0.1:9"
            properties = {"UNIQ_KEY": f"id{number}"} if number % 2 else {}
            yield Message(
                topic, body, keys=("Aa", "BB", f"k{number}"), tags="t", queue_id=queue_id, born_host=host,
                properties=properties,
            )  # fmt: skip


class SoundStore:
    """The folder of one such store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, settings: Settings = SETTINGS) -> SoundStore:
        """Fills a new store and closes it."""
        ticks = itertools.count(T0, 250)
        with MessageStore.open(folder, settings, clock=lambda: next(ticks)) as store:
            for messages in some_messages():
                if isinstance(messages, list):
                    assert store.put_many(messages).ok
                else:
                    assert store.put(messages).ok
            store.catch_up()
            ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues}
        made = cls(folder)
        made._write_config(ends)
        return made

    @property
    def config(self) -> ConfigFiles:
        return ConfigFiles(Files(), self.folder / "config")

    def _write_config(self, ends: dict[tuple[str, int], int]) -> None:
        config, topics = self.config, sorted({topic for topic, _ in ends})
        config.topics.write(Topics(topics={topic: TopicConfig(name=topic) for topic in topics}))
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        for (topic, queue_id), end in ends.items():
            offsets.setdefault((topic, "group"), {})[queue_id] = end - queue_id
        config.consumer_offsets.write(ConsumerOffsets(offsets=offsets))
        config.delay_offsets.write(DelayOffsets(offsets={3: 1}))
        config.subscription_groups.write(SubscriptionGroups(groups={"group": SubscriptionGroup(name="group")}))
        config.consumer_filters.write(ConsumerFilters())

    # -- the log ---------------------------------------------------------------------------------------------

    def log_files(self) -> list[Path]:
        return sorted((self.folder / "commitlog").iterdir())

    def log_path(self, offset: int) -> Path:
        return self.folder / "commitlog" / f"{offset - offset % LOG_SIZE:020d}"

    def records(self) -> list[Spot]:
        """Every record, in log order."""
        found = []
        for path in self.log_files():
            data, topics = path.read_bytes(), kernels.TopicTable()
            rows, _, _ = kernels.walk(data, int(path.name), 0, len(data), True, topics, 10_000)
            for row in rows:
                names = ("physical_offset", "size", "queue_id", "queue_offset", "sys_flag")
                offset, size, queue_id, queue_offset, flag = (int(row[name]) for name in names)
                places = (int(row[name]) for name in ("body_at", "topic_at", "properties_at"))
                topic = topics.name(int(row["topic_id"]))
                found.append(Spot(offset, size, topic, queue_id, queue_offset, flag & 0xC, *places))
        return found

    def middle(self, topic: str = "orders") -> Spot:
        """An ordinary record with a body in the middle of the second log file, not the first or last of its queue."""
        return next(
            spot
            for spot in self.records()
            if spot.topic == topic and not spot.type and LOG_SIZE + 4000 < spot.offset < 2 * LOG_SIZE - 4000
            and spot.topic_at - spot.body_at > 20
        )  # fmt: skip

    def end(self) -> int:
        last = self.records()[-1]
        return last.offset + last.size

    def write(self, path: Path, position: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def write_log(self, offset: int, data: bytes) -> None:
        self.write(self.log_path(offset), offset % LOG_SIZE, data)

    def read_log(self, offset: int, size: int) -> bytes:
        return self.log_path(offset).read_bytes()[offset % LOG_SIZE :][:size]

    # -- queues and index ------------------------------------------------------------------------------------

    def queue_files(self, topic: str = "orders", queue_id: int = 0) -> list[Path]:
        return sorted((self.folder / "consumequeue" / topic / str(queue_id)).iterdir())

    def unit(self, number: int, topic: str = "orders", queue_id: int = 0) -> bytes:
        path, at = self._unit_place(number, topic, queue_id)
        return path.read_bytes()[at : at + 20]

    def write_unit(self, number: int, unit: bytes, topic: str = "orders", queue_id: int = 0) -> None:
        path, at = self._unit_place(number, topic, queue_id)
        self.write(path, at, unit)

    def _unit_place(self, number: int, topic: str, queue_id: int) -> tuple[Path, int]:
        first = number - number % UNITS_PER_FILE
        folder = self.folder / "consumequeue" / topic / str(queue_id)
        return folder / f"{first * 20:020d}", number % UNITS_PER_FILE * 20

    def queue_end(self, topic: str = "orders", queue_id: int = 0) -> int:
        return sum(
            1 for spot in self.records() if (spot.topic, spot.queue_id) == (topic, queue_id) and spot.type in (0, 8)
        )

    def index_files(self) -> list[Path]:
        return sorted((self.folder / "index").iterdir())

    def header(self, path: Path) -> IndexHeader:
        return IndexHeader.unpack(path.read_bytes())
