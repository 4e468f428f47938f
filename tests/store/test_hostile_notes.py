"""Penstock's own notes with numbers that no store writes: a start ignores them or refuses with a sentence.

Each note has a right checksum, so nothing but its numbers is wrong. A start may neither hang, nor raise anything but a
sentence, nor lose a message, nor hide one that is put afterwards.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stores import StoreHome, is_one_sentence

from penstock.errors import PenstockError
from penstock.format.checkpoint import Checkpoint
from penstock.store import Message
from penstock.store.deleted_topics_file import read_deleted_topics
from penstock.store.external_dispatch.files_shared_with_job import MarkFile
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.files.file_io import Files
from penstock.store.sink.journal import Identity, WriterKind

LONGEST_SECONDS = 30
COUNT = 30
SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
_BATCH = {"kind": "query", "name": "q", "batch_id": 1}
_MARK = Identity(WriterKind.QUERY, "q", 1).key
_SIZES = {"commit_log": 4096, "consume_queue": 400, "hash_slots": 50, "index_items": 400}
NOTES: dict[str, Any] = {
    "dispatched.json": None,  # the one of the store
    "damaged.json": {"ranges": [{"physical_offset": 4000, "size": 50, "reason": "ZERO"}]},
    "walked.json": {
        "begin": 0,
        "check_crc": True,
        "walked": {
            "reached": 8192,
            "end": 8192,
            "newest_timestamp": 5,
            "damage": [{"physical_offset": 4000, "size": 50, "reason": "ZERO"}],
            "unsure": [],
        },
        "doubt": {"offset": 0, "since": 0},
    },
    "deleted_topics.json": {"topics": {"X": 100}, "queues": [["Y", 0, 100]]},
    "swap.json": {"moves": [{"place": "index", "is_new": True, "kept": "penstock/quarantine/1/index"}]},
    "dispatch.json": {"sizes": _SIZES, "delay_levels": "1s", "index": True, "commit_log": ""},
    "sink/journal.json": {
        "pending": {"identity": _BATCH, "start": 100_000, "born_timestamp": 5, "rows": 3},
        "spans": [[0, 100]],
    },
    f"sink/marks/{_MARK}.json": {"identity": _BATCH, "start": 0, "end": 100, "rows": 3},
}
HOSTILE: dict[str, Any] = {
    "negative": -5,
    "least": -(2**63),
    "2^62": 2**62,
    "2^63-1": 2**63 - 1,
    "2^63": 2**63,
    "2^200": 2**200,
    "1e308": 1e308,
    "NaN": math.nan,
    "infinity": math.inf,
    "text": "x" * 100,
    "nothing": None,
    "long list": [0] * 100_000,
}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise AssertionError("the start hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    place = StoreHome(tmp_path / "sound")
    store = place.open(**SMALL)
    for _ in range(COUNT):
        place.clock.now += 1000
        place.put_numbered(store, 1)
        place.put_numbered(store, 1, "U", 1)
    store.close()
    yield place
    place.close_all()


def changed(document: Any, value: Any) -> Iterator[Any]:
    """Yields copies of a document in which one leaf after the other is replaced by `value`; dict keys stay."""
    for place in _leaves(document):
        result = inner = copy.deepcopy(document)
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        yield result


def _leaves(document: Any) -> Iterator[tuple[Any, ...]]:
    if not isinstance(document, dict | list):
        yield ()
        return
    steps = document.items() if isinstance(document, dict) else enumerate(document)
    for step, inner in list(steps):
        for rest in _leaves(inner):
            yield (step, *rest)


def sound_note(home: StoreHome, name: str, crashed: bool) -> Any:
    """Returns a note that a start would believe."""
    state = json.loads((home.path / "penstock" / "dispatched.json").read_text())["content"]
    if name == "dispatched.json":
        return state
    note = copy.deepcopy(NOTES[name])
    if name == "walked.json":  # a start believes it if it would doubt the same records
        checkpoint = Checkpoint.unpack((home.path / "checkpoint").read_bytes())
        note["doubt"] = (
            {"offset": state["flushed"], "since": checkpoint.physic} if crashed else {"offset": 2**63 - 1, "since": 0}
        )
    return note


def write_note(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"crc32": zlib.crc32(json.dumps(content).encode()), "content": content}))


def assert_sound(home: StoreHome, **more: Any) -> None:
    """Opens the store, reads all, puts more, and finds that, too."""
    store = home.open(**SMALL, **more)
    for topic, queue_id in (("T", 0), ("U", 1)):
        bodies = home.bodies(store, topic, queue_id)
        assert len(bodies) >= COUNT
        stored = store.put(Message(topic, b"more", queue_id=queue_id))
        assert stored.ok
        assert stored.queue_offset < 2 * COUNT
        assert store.get(topic, queue_id, stored.queue_offset).messages[0].body == b"more"
    store.close()


@pytest.mark.parametrize("crashed", [pytest.param(False, marks=pytest.mark.rest), True], ids=["closed", "crashed"])
@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("note", NOTES)
def test_a_note_with_a_hostile_number_does_no_harm(
    home: StoreHome, tmp_path: Path, note: str, value: str, crashed: bool
) -> None:
    for number, content in enumerate(changed(sound_note(home, note, crashed), HOSTILE[value])):
        other = home.copy_to(tmp_path / f"copy{number}")
        write_note(other.path / "penstock" / note, content)
        if crashed:
            other.mark_crashed()
        assert_sound(other)
        shutil.rmtree(other.path)


@pytest.mark.parametrize("value", HOSTILE)
def test_an_agreement_with_a_hostile_number_is_refused_by_the_job_with_a_sentence(home: StoreHome, value: str) -> None:
    for content in changed(NOTES["dispatch.json"], HOSTILE[value]):
        write_note(home.path / "penstock" / "dispatch.json", content)
        said = "no error"
        try:
            Builder.open(home.path).close()
        except PenstockError as error:
            said = str(error)
        assert said == "no error" or is_one_sentence(said), content


@pytest.mark.parametrize("position", [-1, -(2**63), 2**40, 2**63 - 1])
@pytest.mark.parametrize("mark", ["dispatch.end", "dispatch.done"])
def test_a_mark_with_a_hostile_position_does_not_hang_the_job(home: StoreHome, mark: str, position: int) -> None:
    write_note(home.path / "penstock" / "dispatch.json", NOTES["dispatch.json"])
    file = MarkFile(Files(), home.path / "penstock" / mark)
    file.write(position, position)
    file.close()
    with Builder.open(home.path) as builder:
        builder.build(2**63 - 1)
    home_again = StoreHome(home.path)
    assert_sound(home_again)


@pytest.mark.parametrize("lost", ["the tail of the log", "the log"])
def test_a_topic_whose_deletion_lies_past_the_end_of_the_log_shows_new_messages(home: StoreHome, lost: str) -> None:
    """The deletion was on disk, and a power loss took the log's tail, or its disk was replaced."""
    write_note(home.path / "penstock" / "deleted_topics.json", {"topics": {"T": 10**6}, "queues": [["U", 1, 10**6]]})
    if lost == "the log":
        shutil.rmtree(home.path / "commitlog")
    for _ in range(2):
        store = home.open(**SMALL)
        for topic, queue_id in (("T", 0), ("U", 1)):
            stored = store.put(Message(topic, b"new", queue_id=queue_id))
            assert [record.body for record in store.get(topic, queue_id, stored.queue_offset).messages] == [b"new"]
        store.close()
    assert max(read_deleted_topics(Files(), home.path / "penstock" / "deleted_topics.json").values(), default=0) < 10**6
