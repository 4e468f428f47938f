"""The small files: config and checkpoint that cannot be read are set aside, and their backups put in their place.

A config file that is garbage is replaced by its backup; if that is garbage too, both go to the quarantine and the table
starts empty, as after an installation. A checkpoint of the wrong size, or with times that no record has, goes, and the
start writes a new one. Each is a rename or an atomic replacement, after a copy was kept.


Offsets of consumer groups and delay levels that cannot be: behind the end of their queue, or of what nobody knows.

If the backup of the file has no such offset, it takes the place of the file. Otherwise offsets behind a queue's end are
set to the end, where a broker would send the consumer too, those below 0 to 0, and those of an unknown topic or delay
level go. The old file is kept aside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import BadStore
from penstock.format import loose_json
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.damage import Quarantine
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.repair.report import Change, within


class Settler:
    """Works on one store, whose owner calls it. What it raises is StoreFailed; it can be called again then."""

    def __init__(self, files: Files, layout: Layout, quarantine: Quarantine) -> None:
        self._io = files
        self._layout = layout
        self._quarantine = quarantine
        self._config = ConfigFiles(files, layout.config)

    def settle_config(self) -> list[Change]:
        """A file that does not exist, with or without a backup, is no fault."""
        every: tuple[ConfigFile[Any], ...] = (
            self._config.topics,
            self._config.subscription_groups,
            self._config.consumer_offsets,
            self._config.delay_offsets,
            self._config.consumer_filters,
        )
        return [change for file in every for change in self._settle(file)]

    def _settle(self, file: ConfigFile[Any]) -> list[Change]:
        try:
            loaded = file.read()
        except BadStore:
            what = "neither it nor its backup could be read; it was set aside, and the table starts empty"
            return [self._set_aside(path, what) for path in (file.path, file.backup) if self._io.exists(path)]
        if not loaded.note or not self._io.exists(file.path):
            return []
        if not is_good(self._io, file.backup, type(loaded.table)):
            return [self._set_aside(file.path, "was empty, and was set aside")]
        return [
            self.replace(file.path, self._io.read_bytes(file.backup), "could not be read; its backup took its place")
        ]

    def settle_checkpoint(self, newest: int) -> list[Change]:
        """`newest` is the store time of the log's newest record. A missing checkpoint is no fault."""
        path = self._layout.checkpoint
        if not self._io.exists(path):
            return []
        size = self._io.size(path)
        if size != CHECKPOINT_SIZE:
            return [self._set_aside(path, f"had {size} bytes instead of {CHECKPOINT_SIZE}, and was written anew")]
        page = Checkpoint.unpack(self._io.read_bytes(path))
        if all(0 <= time <= newest for time in (page.physic, page.logics, page.index)):
            return []
        return [self._set_aside(path, "had times that no record has, and was written anew")]

    def replace(self, path: Path, data: bytes, what: str) -> Change:
        """Puts other content in place of a file, after a copy was kept."""
        kept = self._quarantine.keep(f"config-{path.name}", self._io.read_bytes(path))
        self._io.replace_bytes(path, data)
        return Change(self._name(path), what, self._name(kept))

    def _set_aside(self, path: Path, what: str) -> Change:
        return Change(self._name(path), what, self._name(self._quarantine.move_in(path)))

    def _name(self, path: Path) -> str:
        return within(self._layout.root, path)


def is_good(files: Files, path: Path, kind: type[Any]) -> bool:
    """Whether a file is there, and by itself a config file of this kind."""
    try:
        return files.exists(path) and not ConfigFile(files, path, kind).read().note
    except BadStore:
        return False


_SYSTEM_TOPICS = {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DAMAGED_TOPIC}
T = TypeVar("T", ConsumerOffsets, DelayOffsets)


def settle_offsets(
    files: Files, layout: Layout, queues: ConsumeQueues, delay_levels: int, settler: Settler
) -> list[Change]:
    """Raises StoreFailed, and then can be called again."""
    config = ConfigFiles(files, layout.config)
    known = {*config.topics.read().table.topics, *queues.topics()}

    def consumers(table: ConsumerOffsets) -> list[str]:
        return _mend_consumers(table, queues, known)

    def delays(table: DelayOffsets) -> list[str]:
        return _mend_delays(table, queues, delay_levels)

    return [
        *_mend(files, config.consumer_offsets, ConsumerOffsets, consumers, settler),
        *_mend(files, config.delay_offsets, DelayOffsets, delays, settler),
    ]


def _mend(
    files: Files, file: ConfigFile[T], kind: type[T], mend: Callable[[T], list[str]], settler: Settler
) -> list[Change]:
    table = file.read().table
    mended = mend(table)
    if not mended:
        return []
    what = f"had offsets that cannot be ({'; '.join(mended)})"
    if is_good(files, file.backup, kind) and not mend(ConfigFile(files, file.backup, kind).read().table):
        return [settler.replace(file.path, files.read_bytes(file.backup), f"{what}; its backup took its place")]
    document: dict[str, Any] = table.to_json()
    return [settler.replace(file.path, loose_json.dumps(document).encode(), f"{what}; they were put right")]


def _mend_consumers(table: ConsumerOffsets, queues: ConsumeQueues, known: set[str]) -> list[str]:
    """Puts the table right; says what had to be."""
    mended: list[str] = []
    for (topic, group), offsets in list(table.offsets.items()):
        if not (topic in known or topic in _SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))):
            del table.offsets[topic, group]
            mended.append(f"group {group} in topic {topic}, which nobody knows")
            continue
        for queue_id, offset in offsets.items():
            queue = queues.find(topic, queue_id)
            right = max(offset, 0) if queue is None else min(max(offset, 0), queue.max_offset)
            if right != offset:
                offsets[queue_id] = right
                mended.append(f"group {group} in queue {queue_id} of {topic}: {offset}, and {right} is the most")
    return mended


def _mend_delays(table: DelayOffsets, queues: ConsumeQueues, levels: int) -> list[str]:
    mended: list[str] = []
    for level, offset in list(table.offsets.items()):
        queue = queues.find(SCHEDULE_TOPIC, level - 1)
        right = min(max(offset, 0), 0 if queue is None else queue.max_offset)
        if not 1 <= level <= levels:
            del table.offsets[level]
            mended.append(f"delay level {level} of {levels}")
        elif right != offset:
            table.offsets[level] = right
            mended.append(f"delay level {level}: {offset}, and {right} is the most")
    return mended
