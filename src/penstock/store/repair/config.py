"""Repairs the small files: the config tables, the checkpoint, and offsets that are out of bounds.

A config file that cannot be parsed is replaced by its backup; if the backup cannot be parsed either, both go to the
quarantine and the table starts empty. A checkpoint of the wrong size, or with times that no record has, goes to the
quarantine, and the start at the end of the repair writes a new one.

Offsets of consumer groups and delay levels are checked against the queues. If an offset is wrong and the backup has no
wrong offset, the backup replaces the file. Otherwise an offset past a queue's end is set to the end (a broker would
send the consumer there, too), a negative offset is set to 0, and offsets of unknown topics and delay levels are
removed.

Each change is a rename into the quarantine, or an atomic replacement after a copy was saved.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import BadStore
from penstock.format import fastjson
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.damage_and_quarantine import Quarantine
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.rebuild.report import within
from penstock.store.repair.report import Change


class ConfigRepair:
    """Repairs the config files and the checkpoint of one store. Callers must own the store.

    Methods raise StoreFailed; callers can then repeat them.
    """

    def __init__(self, files: Files, layout: Layout, quarantine: Quarantine) -> None:
        self._io = files
        self._layout = layout
        self._quarantine = quarantine
        self._config = ConfigFiles(files, layout.config)

    def repair_config(self) -> list[Change]:
        """Repairs config files that cannot be read. A missing file is not a fault, with or without a backup."""
        config_files: tuple[ConfigFile[Any], ...] = (
            self._config.topics,
            self._config.subscription_groups,
            self._config.consumer_offsets,
            self._config.delay_offsets,
            self._config.consumer_filters,
        )
        return [change for file in config_files for change in self._repair_file(file)]

    def _repair_file(self, file: ConfigFile[Any]) -> list[Change]:
        try:
            loaded = file.read()
        except BadStore:
            what = "neither it nor its backup could be read; moved to the quarantine, the table starts empty"
            return [self._set_aside(path, what) for path in (file.path, file.backup) if self._io.exists(path)]
        if not loaded.note or not self._io.exists(file.path):
            return []
        if not is_readable(self._io, file.backup, type(loaded.table)):
            return [self._set_aside(file.path, "was empty; moved to the quarantine")]
        return [self.replace(file.path, self._io.read_bytes(file.backup), "could not be read; replaced by its backup")]

    def repair_checkpoint(self, newest: int) -> list[Change]:
        """Removes a wrong checkpoint. `newest`: store time of the log's newest record, in ms.

        A missing checkpoint is not a fault.
        """
        path = self._layout.checkpoint
        if not self._io.exists(path):
            return []
        size = self._io.size(path)
        if size != CHECKPOINT_SIZE:
            return [self._set_aside(path, f"had {size} bytes instead of {CHECKPOINT_SIZE}; written again")]
        page = Checkpoint.unpack(self._io.read_bytes(path))
        if all(0 <= time <= newest for time in (page.physic, page.logics, page.index)):
            return []
        return [self._set_aside(path, "had times that no record has; written again")]

    def replace(self, path: Path, data: bytes, what: str) -> Change:
        """Saves a copy of a file in the quarantine, then replaces its content. `what`: the text for the report."""
        kept = self._quarantine.keep(f"config-{path.name}", self._io.read_bytes(path))
        self._io.replace_bytes(path, data)
        return Change(self._name(path), what, self._name(kept))

    def _set_aside(self, path: Path, what: str) -> Change:
        return Change(self._name(path), what, self._name(self._quarantine.move_in(path)))

    def _name(self, path: Path) -> str:
        return within(self._layout.root, path)


def is_readable(files: Files, path: Path, kind: type[Any]) -> bool:
    """Whether a file exists and is a valid config file of this kind; its backup does not count."""
    try:
        return files.exists(path) and not ConfigFile(files, path, kind).read().note
    except BadStore:
        return False


# -- offsets ------------------------------------------------------------------------------------------------------

_SYSTEM_TOPICS = {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DAMAGED_TOPIC}
T = TypeVar("T", ConsumerOffsets, DelayOffsets)


def repair_offsets(
    files: Files, layout: Layout, queues: ConsumeQueues, delay_levels: int, config_repair: ConfigRepair
) -> list[Change]:
    """Repairs offsets that are out of bounds. `delay_levels`: their number. Raises StoreFailed; can be repeated."""
    config = ConfigFiles(files, layout.config)
    known = {*config.topics.read().table.topics, *queues.topics()}

    def fix_consumers(table: ConsumerOffsets) -> list[str]:
        return _fix_consumers(table, queues, known)

    def fix_delays(table: DelayOffsets) -> list[str]:
        return _fix_delays(table, queues, delay_levels)

    return [
        *_fix(files, config.consumer_offsets, ConsumerOffsets, fix_consumers, config_repair),
        *_fix(files, config.delay_offsets, DelayOffsets, fix_delays, config_repair),
    ]


def _fix(
    files: Files, file: ConfigFile[T], kind: type[T], fix: Callable[[T], list[str]], config_repair: ConfigRepair
) -> list[Change]:
    table = file.read().table
    fixes = fix(table)
    if not fixes:
        return []
    what = f"had wrong offsets ({'; '.join(fixes)})"
    if is_readable(files, file.backup, kind) and not fix(ConfigFile(files, file.backup, kind).read().table):
        return [config_repair.replace(file.path, files.read_bytes(file.backup), f"{what}; replaced by its backup")]
    document: dict[str, Any] = table.to_json()
    return [config_repair.replace(file.path, fastjson.dumps(document).encode(), f"{what}; corrected")]


def _fix_consumers(table: ConsumerOffsets, queues: ConsumeQueues, known: set[str]) -> list[str]:
    """Corrects the table; returns a description of each correction."""
    fixes: list[str] = []
    for (topic, group), offsets in list(table.offsets.items()):
        if not (topic in known or topic in _SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))):
            del table.offsets[topic, group]
            fixes.append(f"group {group} in unknown topic {topic}")
            continue
        for queue_id, offset in offsets.items():
            queue = queues.find(topic, queue_id)
            correct = max(offset, 0) if queue is None else min(max(offset, 0), queue.max_offset)
            if correct != offset:
                offsets[queue_id] = correct
                fixes.append(f"group {group} in queue {queue_id} of {topic}: {offset} is now {correct}")
    return fixes


def _fix_delays(table: DelayOffsets, queues: ConsumeQueues, levels: int) -> list[str]:
    fixes: list[str] = []
    for level, offset in list(table.offsets.items()):
        queue = queues.find(SCHEDULE_TOPIC, level - 1)
        correct = min(max(offset, 0), 0 if queue is None else queue.max_offset)
        if not 1 <= level <= levels:
            del table.offsets[level]
            fixes.append(f"delay level {level}, but there are {levels} levels")
        elif correct != offset:
            table.offsets[level] = correct
            fixes.append(f"delay level {level}: {offset} is now {correct}")
    return fixes
