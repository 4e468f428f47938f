"""What a start makes of a store that was killed, torn or damaged."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable

import pytest
from support.stores import StoreHome

from penstock.format.index_layout import IndexHeader
from penstock.format.queue_unit import pack_unit
from penstock.format.record import Record, encode_record
from penstock.store import Message

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}
CLEAN_OR_NOT = pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])

WRITER = """
import itertools, json, sys
from penstock.store import Message, MessageStore, Settings
path, changes = sys.argv[1], json.loads(sys.argv[2])
store = MessageStore.open(path, Settings.dev(**changes))
for number in itertools.count():
    result = store.put(Message("T", b"%d" % number, keys=(f"k{number}",), tags="paid", queue_id=number % 3))
    assert result.ok, result
    print(number, result.queue_id, result.queue_offset, flush=True)
"""

Run = Callable[..., "subprocess.Popen[str]"]


def index_items(home: StoreHome) -> int:
    counts = (IndexHeader.unpack(path.read_bytes()[:40]).index_count for path in home.index_files())
    return sum(max(count, 1) - 1 for count in counts)


def torn_record(physical_offset: int, queue_offset: int) -> bytes:
    whole = encode_record(
        Record(topic="T", queue_offset=queue_offset, physical_offset=physical_offset, body=b"torn" * 50)
    )
    return whole[: len(whole) // 2]


# -- killed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kill_after", [1, 37, 200])
def test_what_was_acknowledged_survives_a_kill(
    home: StoreHome, run_python: Run, kernels_name: str, flush: str, kill_after: int
) -> None:
    changes = {**SMALL, "flush_disk_type": flush, "pre_allocate_files": kill_after == 200}
    writer = run_python(WRITER, home.path, json.dumps(changes))
    assert writer.stdout is not None
    assert writer.stderr is not None
    said = "".join(writer.stdout.readline() for _ in range(kill_after))
    writer.send_signal(signal.SIGKILL)
    said += writer.stdout.read()
    assert "Error" not in writer.stderr.read()
    acknowledged = [line.split() for line in said.split("\n")[:-1]]
    assert (home.path / "abort").exists()

    store = home.open(**changes)
    assert not store.report.clean_exit
    found: dict[int, int] = {}
    for queue_id in range(3):
        messages = home.read_queue(store, "T", queue_id)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        assert [int(message.body) for message in messages] == list(range(queue_id, 3 * len(messages), 3))
        found.update({int(message.body): message.queue_offset for message in messages})
    assert all(found[int(number)] == int(offset) for number, _, offset in acknowledged)
    assert len(found) - len(acknowledged) <= 1, "one more may have been stored and not yet acknowledged"
    for number in found:
        assert [int(record.body) for record in store.query("T", f"k{number}")] == [number]
        assert store.get("T", number % 3, number // 3, 1, tags="paid").messages[0].body == b"%d" % number
    assert index_items(home) == len(found), "no key is in the index twice"
    assert store.put(Message("T", b"next", queue_id=0)).queue_offset == store.max_offset("T", 0) - 1


def test_files_made_ahead_and_never_used_are_removed_after_a_crash(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 50)
        before = home.state(store)
    names = [path.name for path in home.log_files()]
    for number in range(len(names), len(names) + 2):
        (home.path / "commitlog" / f"{number * 4096:020d}").write_bytes(bytes(4096))
    home.mark_crashed()
    store = home.open(**SMALL)
    assert [path.name for path in home.log_files()] == names
    assert home.state(store) == before
    assert home.kept() == []
    assert store.report.torn_bytes == 0


@pytest.mark.parametrize("size", [0, 1000])
def test_a_last_file_whose_making_was_cut_short_is_made_anew(home: StoreHome, size: int) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 50)
        before = home.state(store)
    unfinished = home.path / "commitlog" / f"{len(home.log_files()) * 4096:020d}"
    unfinished.write_bytes(bytes(size))
    home.mark_crashed()
    store = home.open(**SMALL)
    assert home.state(store) == before
    home.put_numbered(store, 50)
    assert unfinished.stat().st_size == 4096
    assert len(home.read_queue(store, "T")) == 100


def test_a_store_killed_before_its_first_message_opens_empty(home: StoreHome) -> None:
    home.open().close()
    home.mark_crashed()
    store = home.open()
    assert not store.report.clean_exit
    assert store.topics() == []
    assert store.put(Message("T", b"x")).physical_offset == 0


# -- a torn tail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashed", [True, False], ids=["crash", "clean_exit"])
def test_a_torn_record_is_cut_off_kept_aside_and_zeroed(home: StoreHome, crashed: bool) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 20)
        before, end = home.state(store), store.log.max_offset
    torn = torn_record(end, 20)
    home.write(home.log_files()[0], end, torn)
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    assert store.report.torn_bytes > 0
    assert store.report.log_end == end
    assert home.state(store) == before
    assert [path.read_bytes() for path in home.kept()] == [torn.rstrip(b"\0")]
    assert len(store.report.notes) == 1
    assert str(home.kept()[0]) in store.report.notes[0]
    assert not any(home.log_files()[0].read_bytes()[end:])
    ack = store.put(Message("T", b"next"))
    assert (ack.physical_offset, ack.queue_offset) == (end, 20)


@pytest.mark.parametrize("part", ["header", "body", "topic", "all but the magic"])
def test_every_way_a_last_record_can_be_torn_is_noticed(home: StoreHome, part: str) -> None:
    with home.open() as store:
        home.put_numbered(store, 3)
        last = store.put(Message("topic", b"b" * 50, properties={"name": "value"}))
        end = last.end_offset
    log, start = home.log_files()[0], last.physical_offset
    if part == "all but the magic":
        home.write(log, start, bytes(8))
    else:
        kept = {"header": 40, "body": 100, "topic": 140}
        home.write(log, start + kept[part], bytes(end - start - kept[part]))
    home.mark_crashed()
    shutil.rmtree(home.path / "consumequeue")
    shutil.rmtree(home.path / "index")
    store = home.open()
    assert home.read_queue(store, "topic") == []
    assert store.report.log_end == start
    assert home.bodies(store, "T") == [b"0000", b"0001", b"0002"]


def test_garbage_behind_the_log_is_kept_aside_and_zeroed(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 5)
        before, end = home.state(store), store.log.max_offset
    garbage = bytes(range(1, 256))
    home.write(home.log_files()[0], 3000, garbage)
    home.mark_crashed()
    store = home.open(**SMALL)
    assert home.state(store) == before
    assert [path.read_bytes().lstrip(b"\0") for path in home.kept()] == [garbage]
    assert not any(home.log_files()[0].read_bytes()[end:])


def test_stale_units_behind_a_cut_do_not_come_back(home: StoreHome) -> None:
    """After RocketMQ cut a record, its unit seemed valid again once another topic's bytes lay there."""
    sizes = {"mapped_file_size_consume_queue": 10 * 20}
    with home.open(**sizes) as store:
        home.put_numbered(store, 25)
        last = home.read_queue(store, "T")[-1]
    home.flip(home.log_files()[0], last.physical_offset + 89)
    with home.open(**sizes) as store:
        assert store.max_offset("T", 0) == 24
        assert store.report.units_cut == 1
        assert store.query("T", "k24") == []
        home.put_numbered(store, 6, topic="U")
    for _ in range(2):
        with home.open(**sizes) as store:
            assert store.max_offset("T", 0) == 24
            assert len(home.read_queue(store, "T")) == 24
            assert len(home.read_queue(store, "U")) == 6
            assert store.query("T", "k24") == []
            assert all(len(store.query("U", f"k{number}")) == 1 for number in range(6))
    assert home.open(**sizes).put(Message("T", b"new")).queue_offset == 24


def test_units_without_a_record_behind_the_logs_end_are_zeroed(home: StoreHome) -> None:
    """The queue reached the disk before the log did."""
    with home.open() as store:
        home.put_numbered(store, 3)
        end = store.log.max_offset
    queue = home.queue_files("T")[0]
    home.write(queue, 3 * 20, pack_unit(end, 100, 7) + pack_unit(end + 100, 100, 7))
    home.mark_crashed()
    with home.open() as store:
        assert store.report.units_cut == 2
        assert store.max_offset("T", 0) == 3
        assert not any(queue.read_bytes()[3 * 20 :])


def test_units_behind_a_hole_are_zeroed_and_built_again(home: StoreHome) -> None:
    """A power cut may bring a later page of a queue to disk and lose an earlier one."""
    with home.open() as store:
        home.put_numbered(store, 10)
        before = home.state(store)
    queue = home.queue_files("T")[0]
    content = queue.read_bytes()
    home.write(queue, 4 * 20, bytes(2 * 20))
    home.mark_crashed()
    assert home.state(home.open()) == before
    assert queue.read_bytes() == content


def test_the_last_unit_of_a_queue_may_be_half_written(home: StoreHome) -> None:
    """A unit that lies across two pages can lose the end of its tags code in a power cut."""
    with home.open() as store:
        for _ in range(3):
            store.put(Message("T", b"", tags="paid"))
        assert len(store.get("T", 0, 0, tags="paid").messages) == 3
    home.write(home.queue_files("T")[0], 2 * 20 + 16, bytes(4))
    home.mark_crashed()
    assert len(home.open().get("T", 0, 0, tags="paid").messages) == 3


# -- again and again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["none", "torn tail", "damage", "no queues", "no index"])
def test_recovery_ends_in_the_same_state_however_often_it_runs(home: StoreHome, harm: str) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 120)
        end = store.log.max_offset
    if harm == "torn tail":
        home.write(home.log_files()[-1], end % 4096, torn_record(end, 120))
    elif harm == "damage":
        home.flip(home.log_files()[0], 150)
    elif harm == "no queues":
        shutil.rmtree(home.path / "consumequeue")
    elif harm == "no index":
        shutil.rmtree(home.path / "index")
    home.mark_crashed()
    with home.open(**SMALL) as store:
        first = home.state(store)
    assert index_items(home) == (119 if harm == "damage" and not home.index_files() else 120)
    for crashed in (False, True, True):
        if crashed:
            home.mark_crashed()
        with home.open(**SMALL) as store:
            assert home.state(store) == first
    assert index_items(home) == 120
    assert len(home.kept()) == (1 if harm == "torn tail" else 0)


# -- damage --------------------------------------------------------------------------------------------------


@CLEAN_OR_NOT
@pytest.mark.parametrize("lost", ["nothing else", "the queues and the index"])
def test_damage_in_the_middle_does_not_cut_off_what_follows(home: StoreHome, crashed: bool, lost: str) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 100)
        records = home.read_queue(store, "T")
    bad = records[20]
    home.flip(home.log_files()[bad.physical_offset // 4096], bad.physical_offset % 4096 + 90)
    if lost == "the queues and the index":
        shutil.rmtree(home.path / "consumequeue")
        shutil.rmtree(home.path / "index")
    if crashed:
        home.mark_crashed()
    for _ in range(2):
        with home.open(**SMALL) as store:
            assert home.read_queue(store, "T") == records[:20] + records[21:]
            assert store.query("T", "k20") == []
            assert [record.body for record in store.query("T", "k21")] == [b"0021"]
            assert store.max_offset("T", 0) == 100
            if crashed and store.report.walked_from == 0 and not store.report.clean_exit:
                assert [found.physical_offset for found in store.report.damage] == [bad.physical_offset]
    assert home.kept() == [], "nothing was cut"


@CLEAN_OR_NOT
def test_a_file_in_the_middle_that_was_zeroed_does_not_cut_off_the_next_one(home: StoreHome, crashed: bool) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 100)
        records = home.read_queue(store, "T")
    files = home.log_files()
    files[1].write_bytes(bytes(4096))
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    expected = [record for record in records if not 4096 <= record.physical_offset < 8192]
    assert home.read_queue(store, "T") == expected
    assert len(home.log_files()) == len(files)
    assert store.put(Message("T", b"next")).queue_offset == 100


def test_a_damaged_size_does_not_hide_the_records_behind_it(home: StoreHome) -> None:
    with home.open() as store:
        home.put_numbered(store, 10)
        records = home.read_queue(store, "T")
    bad = records[4]
    for size in (0, -1, 5, 2**31 - 1, bad.size + 3):
        home.write(home.log_files()[0], bad.physical_offset, size.to_bytes(4, "big", signed=True))
        home.mark_crashed()
        with home.open() as store:
            assert home.read_queue(store, "T") == records[:4] + records[5:]
            assert [found.physical_offset for found in store.report.damage] == [bad.physical_offset]
