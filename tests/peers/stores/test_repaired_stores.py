"""A store that was damaged and repaired opens in Apache RocketMQ 4.9.8, which serves everything but what was lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from failure.corruption.damaged_store import SETTINGS, Base, Damage, do_damage, make_base
from support.disks import UnsyncedFiles
from support.messages import SEED
from support.peers import Peer

from penstock.cli.output import message_object
from penstock.format.constants import DAMAGED_TOPIC
from penstock.store.repair import repair

pytestmark = pytest.mark.java

SIZES = {
    "mappedFileSizeCommitLog": SETTINGS.mapped_file_size_commit_log,
    "mappedFileSizeConsumeQueue": SETTINGS.mapped_file_size_consume_queue,
    "maxHashSlotNum": SETTINGS.max_hash_slot_num,
    "maxIndexNum": SETTINGS.max_index_num,
    "maxMessageSize": SETTINGS.max_message_size,
}
SEEDS = range(12)


def damage_of_the_log(base: Base, folder: Path, seed: int) -> Damage:
    """The first damage from a seed on that hits messages, or the files of the log as such."""
    for number in range(100):
        base.write_to(folder)
        damage = do_damage(folder, random.Random(f"{SEED} java {seed} {number}"))
        if any(damage.hits_record(record) for record in base.records.values()):
            return damage
    raise AssertionError("no damage hits the log")


def read_queue(java: Peer, topic: str, queue_id: int, end: int) -> dict[int, dict[str, Any]]:
    """What Java serves of a queue, by queue offset; placeholders, which it takes for messages, are left out."""
    found: dict[int, dict[str, Any]] = {}
    offset = 0
    while offset < end:
        page = java.ask("get", topic=topic, queue=queue_id, offset=offset, max=32)
        assert page["next_begin_offset"] > offset, page
        offset = page["next_begin_offset"]
        found |= {
            each["queue_offset"]: each for each in page["messages"] if not DAMAGED_TOPIC.startswith(each["topic"])
        }
    return found


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_java_serves_what_a_repair_left(tmp_path: Path, java: Peer, is_clean: bool) -> None:
    base = make_base(tmp_path / "base", is_clean=is_clean)
    for seed in SEEDS:
        folder = tmp_path / f"store-{seed}"
        damage = damage_of_the_log(base, folder, seed)
        repair(folder, SETTINGS, files=UnsyncedFiles())
        java.open(folder, SIZES)
        print(f"seed {seed}: {damage.what}")
        for topic, queue_id in {(record.topic, record.queue_id) for record in base.records.values()}:
            of_queue = [each for each in base.records.values() if (each.topic, each.queue_id) == (topic, queue_id)]
            served = read_queue(java, topic, queue_id, 1 + max(record.queue_offset for record in of_queue))
            for record in of_queue:
                if not damage.hits_record(record):
                    wanted = message_object(record, 0)
                    del wanted["tags_code"], wanted["body_text"]
                    assert served.get(record.queue_offset) == wanted, damage.what
        for record in base.records.values():
            if not damage.hits_record(record):
                hits = java.ask("query", topic=record.topic, key=record.keys[0], begin=0, end=2**62, max=8)
                assert record.physical_offset in [hit["physical_offset"] for hit in hits], damage.what
        java.ask("close")
