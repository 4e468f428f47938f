"""A sound store gives no finding, whatever is in it, whatever it went through, and while it is in use."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from store.properties.test_put_is_got import HISTORIES, SETTINGS, History, scratch
from support import full_speed_writer
from support.effort import BY_TWIN, running_on
from support.messages import STORED, as_v2, make_record

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry, key_hash
from penstock.store import Message, MessageStore, Settings
from penstock.store.audit import Finding, audit

LONG_TOPIC = "%RETRY%" + "g" * 200
LOG_SIZE = 8192


def without_config(findings: list[Finding]) -> list[Finding]:
    """A store without a broker has no config files, which is only a note."""
    return [finding for finding in findings if finding.kind != "config-missing"]


@pytest.mark.parametrize("twin", BY_TWIN)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(changes=SETTINGS, steps=HISTORIES)
def test_a_store_of_any_content_and_history_gives_nothing(
    twin: str, changes: dict[str, Any], steps: list[tuple[str, Any, int]]
) -> None:
    with running_on(twin), scratch() as folder:
        history = History(folder, changes)
        given_sizes = Settings(
            max_hash_slot_num=history.settings.max_hash_slot_num, max_index_num=history.settings.max_index_num
        )
        known = given_sizes.with_changes(max_index_num=given_sizes.max_index_num)
        try:
            for step in steps:
                history.step(*step)
            history.store.catch_up()
            while_open = audit(history.root, known)
        finally:
            history.store.close()
        report = audit(history.root, known)
        assert while_open.errors == []
        assert while_open.figures.in_use
        assert without_config(report.findings) == []
        assert report.figures.records == len(history.model.records)
        assert report.figures.messages == sum(len(history.model.queue(*name)) for name in history.model.queues())
        assert report.figures.keys == report.figures.index_items


def test_records_of_rocketmq_5_with_long_topics_are_sound(tmp_path: Path) -> None:
    log = bytearray()
    for number in range(5):
        properties = {"KEYS": f"k{number}", "TAGS": "t"}
        record = make_record(
            len(log), b"body", topic="T" * 100, queue_offset=number, store_timestamp=STORED, properties=properties
        )
        log += as_v2(record, b"T" * 100)
        long = make_record(len(log), b"long", topic="x" * 100, queue_offset=number, properties=properties)
        log += _with_long_topic(long)
    folder = tmp_path / "commitlog"
    folder.mkdir()
    (folder / ("0" * 20)).write_bytes(bytes(log).ljust(LOG_SIZE, b"\0"))
    with MessageStore.open(tmp_path, Settings.dev(mapped_file_size_commit_log=LOG_SIZE)) as store:
        assert store.max_offset(LONG_TOPIC, 0) == 5
        assert store.max_offset("T" * 100, 0) == 5
    report = audit(tmp_path, Settings.dev())
    assert without_config(report.findings) == []
    assert (report.figures.records, report.figures.keys) == (10, 10)


GEOMETRY = IndexGeometry(slots=100, items=500)
TAGGED = Settings.dev(max_hash_slot_num=100, max_index_num=500)


@pytest.mark.parametrize("key", ["", "k"], ids=["tags alone", "keys and tags"])
def test_an_index_of_rocketmq_5_5_with_items_for_tags_is_sound(tmp_path: Path, key: str) -> None:
    items: list[tuple[int, int, int]] = []
    with MessageStore.open(tmp_path, TAGGED) as store:
        for number in range(30):
            store.put(
                Message("T", b"x", tags=f"päckchen{number % 3}" if number % 4 else "", keys=(key,) if key else ())
            )
        for record in store.get("T", 0, 0, 30).messages:
            place = record.physical_offset, record.store_timestamp
            items += [(key_hash("T", each), *place) for each in record.keys]
            items += [(key_hash("T", f"T#{record.tags}"), *place)] if record.tags else []
    file = bytearray(GEOMETRY.file_size)
    columns = zip(*items, strict=True)
    hashes, offsets, times = (np.array(column, kind) for column, kind in zip(columns, "iqq", strict=True))
    assert kernels.index_put(file, *GEOMETRY, hashes, offsets, times) == len(items)
    (tmp_path / "index").mkdir(exist_ok=True)
    path = next((tmp_path / "index").iterdir(), tmp_path / "index" / "20200101000000000")
    path.write_bytes(file)
    assert without_config(audit(tmp_path, TAGGED).findings) == []
    wrong = GEOMETRY.item_position(len(items))
    path.write_bytes(bytes(file[:wrong]) + struct.pack(">i", int(hashes[-1]) + 100) + bytes(file[wrong + 4 :]))
    assert "index-dangling" in {finding.kind for finding in audit(tmp_path, TAGGED).findings}
    path.write_bytes(file)
    with MessageStore.open(tmp_path, TAGGED) as store:
        store.put(Message("T", b"new", tags="päckchen0", keys=(key,) if key else ()))
    assert without_config(audit(tmp_path, TAGGED).findings) == []


def _with_long_topic(record: bytes) -> bytes:
    """The record in 5.x's form, with a topic that is too long for the other."""
    short = as_v2(record, b"x" * 100)
    at = short.rindex((100).to_bytes(2, "big") + b"x" * 100)
    topic = LONG_TOPIC.encode()
    grown = short[:at] + len(topic).to_bytes(2, "big") + topic + short[at + 102 :]
    return len(grown).to_bytes(4, "big") + grown[4:]


def test_a_store_without_anything_gives_nothing(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, Settings.dev()):
        pass
    report = audit(tmp_path, Settings.dev())
    assert without_config(report.findings) == []
    assert report.figures.records == 0


def test_a_store_whose_index_is_switched_off_is_sound_without_one(tmp_path: Path) -> None:
    off = Settings.dev(message_index_enable=False)
    with MessageStore.open(tmp_path, off) as store:
        assert store.put(Message("T", b"x", keys=("k",))).ok
    assert audit(tmp_path, off).errors == []
    assert [finding.kind for finding in audit(tmp_path, Settings.dev()).errors] == ["index-key-missing"]


@pytest.mark.parametrize("count", [200_000, pytest.param(5_000_000, marks=pytest.mark.torture)])
def test_many_messages_in_many_files_give_nothing(tmp_path: Path, count: int) -> None:
    with MessageStore.open(tmp_path, Settings.dev()) as store:
        for first in range(0, count, 500):
            some = range(first, first + 500)
            batch = [Message(f"T{each % 7}", b"%d" % each, keys=(f"k{each}",), queue_id=each % 3) for each in some]
            assert store.put_many(batch).ok
    report = audit(tmp_path, Settings.dev(), workers=2)
    assert without_config(report.findings) == []
    assert report.figures.records == report.figures.units == report.figures.keys == count


def test_a_store_that_is_written_at_full_speed_gives_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    command = [sys.executable, full_speed_writer.__file__, str(folder), "60000"]
    looks = with_records = 0
    with subprocess.Popen(command) as writer:
        while writer.poll() is None:
            if not (folder / "lock").exists():
                continue
            report = audit(folder, Settings.dev())
            assert report.errors == [], report.errors[:3]
            looks += 1
            with_records += report.figures.in_use and report.figures.records > 0
    assert writer.returncode == 0
    assert with_records > 0, looks
    report = audit(folder, Settings.dev())
    assert without_config(report.findings) == []
    assert report.figures.records >= 60_000 - full_speed_writer.THREADS
