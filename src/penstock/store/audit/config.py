"""Audits the checkpoint and the config files against the log and the queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.format.constants import (
    DAMAGED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from penstock.store.audit import finding_kinds
from penstock.store.audit.findings import Finding
from penstock.store.audit.log import LogState
from penstock.store.audit.plan import AuditPlan
from penstock.store.audit.queue_coverage import QueueName
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.files.file_io import Files

_SYSTEM_TOPICS = {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DAMAGED_TOPIC}
_TRIES = 5
"""How many times a file of a store in use is read: its owner may be replacing it."""


class ConfigState(msgspec.Struct, frozen=True):
    """The content of the config files and the checkpoint."""

    topics: frozenset[str] | None = None
    """The topics in topics.json; None if the file does not exist."""
    consumer_offsets: dict[tuple[str, str], dict[int, int]] = {}
    delay_offsets: dict[int, int] = {}
    checkpoint: Checkpoint | None = None
    findings: tuple[Finding, ...] = ()


class QueueBounds(msgspec.Struct, frozen=True):
    minimum: int
    maximum: int


def read_config(files: Files, plan: AuditPlan) -> ConfigState:
    """Reads the config files and the checkpoint. A file that cannot be read becomes a finding and counts as empty."""
    config_files = ConfigFiles(files, plan.layout.config)
    findings: list[Finding] = []
    tables: dict[str, Any] = {}
    for file in (
        config_files.topics,
        config_files.consumer_offsets,
        config_files.delay_offsets,
        config_files.subscription_groups,
        config_files.consumer_filters,
    ):
        tables[file.path.name], file_findings = _read(files, file, _TRIES if plan.is_live else 1)
        findings += file_findings
    if not files.is_folder(plan.layout.config):
        findings = [finding_kinds.CONFIG_MISSING.at(plan.layout.config, "there are no config files")]
    checkpoint, checkpoint_findings = _read_checkpoint(files, plan)
    topics, offsets, delays = (tables[name] for name in ("topics.json", "consumerOffset.json", "delayOffset.json"))
    return ConfigState(
        None if topics is None else frozenset(topics.topics),
        {} if offsets is None else offsets.offsets,
        {} if delays is None else delays.offsets,
        checkpoint,
        (*findings, *checkpoint_findings),
    )


def _read(files: Files, file: ConfigFile[Any], tries: int) -> tuple[Any, list[Finding]]:
    """Returns the table and the findings; the table is None if the file does not exist or cannot be read."""
    exists, note, table = False, "", None
    for _ in range(tries):  # RocketMQ removes the old file before it renames the new one
        exists = files.exists(file.path)
        try:
            loaded = file.read()
        except BadStore as error:
            return None, [finding_kinds.CONFIG_UNREADABLE.at(file.path, str(error.args[0]))]
        table, note = loaded.table, loaded.note.rstrip(".")
        if exists and not note:
            return table, []
    if exists:
        return table, [finding_kinds.CONFIG_UNREADABLE.at(file.path, note)]
    missing = finding_kinds.CONFIG_MISSING.at(file.path, note or "the file does not exist")
    return (table if note else None), [missing]


def _read_checkpoint(files: Files, plan: AuditPlan) -> tuple[Checkpoint | None, list[Finding]]:
    path = plan.layout.checkpoint
    if not files.exists(path):
        return None, [finding_kinds.CHECKPOINT_MISSING.at(path, "the file does not exist")]
    data = files.read_bytes(path)
    if len(data) != CHECKPOINT_SIZE:
        return None, [
            finding_kinds.CHECKPOINT_SIZE.at(path, f"the file has {len(data)} bytes instead of {CHECKPOINT_SIZE}")
        ]
    return Checkpoint.unpack(data), []


def audit_config(
    plan: AuditPlan, state: ConfigState, log: LogState, queues: Mapping[QueueName, QueueBounds]
) -> Iterator[Finding]:
    """Compares the config with the queues and the checkpoint with the log."""
    yield from state.findings
    yield from _checkpoint(plan, state, log)
    yield from _consumer_offsets(plan, state, queues)
    yield from _delay_offsets(plan, state, queues)
    stored = {topic for topic, _ in queues}
    for topic in sorted(stored - (state.topics or stored) - _SYSTEM_TOPICS):
        what = f"topic {topic} has queues but is not in topics.json"
        yield finding_kinds.TOPIC_NOT_CONFIGURED.at(plan.layout.config / "topics.json", what)


def _checkpoint(plan: AuditPlan, state: ConfigState, log: LogState) -> Iterator[Finding]:
    """Compares the checkpoint with the newest record.

    Skips a store in use, because its checkpoint advances, and a log whose end is damaged.
    """
    tail_is_lost = any(fault.end >= log.end for fault in log.faults)
    if state.checkpoint is None or plan.is_live or not log.newest_time or tail_is_lost:
        return
    for name in ("physic", "logics", "index"):
        time = getattr(state.checkpoint, name)
        if time > log.newest_time:
            what = f"its {name} time is {time}, but the newest record was stored at {log.newest_time}"
            at = 8 * ("physic", "logics", "index").index(name)
            yield finding_kinds.CHECKPOINT_AHEAD.at(plan.layout.checkpoint, what, offset=at)


def _consumer_offsets(
    plan: AuditPlan, state: ConfigState, queues: Mapping[QueueName, QueueBounds]
) -> Iterator[Finding]:
    path = plan.layout.config / "consumerOffset.json"
    stored = {topic for topic, _ in queues}
    for (topic, group), offsets in sorted(state.consumer_offsets.items()):
        if not (topic in stored or topic in (state.topics or ()) or _is_system(topic)):
            yield finding_kinds.UNKNOWN_TOPIC.at(path, f"group {group} has offsets in unknown topic {topic}")
            continue
        for queue_id, offset in sorted(offsets.items()):
            bounds = queues.get((topic, queue_id))
            where = f"group {group} is at offset {offset} in queue {queue_id} of {topic}"
            if bounds is None:
                if offset > 0:
                    yield finding_kinds.CONSUMER_OFFSET_QUEUE_GONE.at(path, f"{where}, which has no files")
            elif offset > bounds.maximum or offset < 0:
                what = f"{where}, which ends at {bounds.maximum}"
                yield finding_kinds.CONSUMER_OFFSET_PAST_END.at(path, what)
            elif offset < bounds.minimum:
                what = f"{where}, which begins at {bounds.minimum}"
                yield finding_kinds.CONSUMER_OFFSET_BELOW_MINIMUM.at(path, what, messages=bounds.minimum - offset)


def _is_system(topic: str) -> bool:
    return topic in _SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _delay_offsets(plan: AuditPlan, state: ConfigState, queues: Mapping[QueueName, QueueBounds]) -> Iterator[Finding]:
    path = plan.layout.config / "delayOffset.json"
    levels = len(plan.settings.delay_levels)
    for level, offset in sorted(state.delay_offsets.items()):
        if not 1 <= level <= levels:
            yield finding_kinds.DELAY_LEVEL_UNKNOWN.at(
                path, f"level {level} has an offset, but there are {levels} levels"
            )
            continue
        bounds = queues.get((SCHEDULE_TOPIC, level - 1), QueueBounds(0, 0))
        if offset > bounds.maximum or offset < 0:
            what = f"level {level} is at offset {offset}, but its queue ends at {bounds.maximum}"
            yield finding_kinds.DELAY_OFFSET_PAST_END.at(path, what)
        elif offset < bounds.minimum:
            what = f"level {level} is at offset {offset}, but its queue begins at {bounds.minimum}"
            yield finding_kinds.DELAY_OFFSET_BELOW_MINIMUM.at(path, what, messages=bounds.minimum - offset)
