"""A record whose first bytes were zeroed looks unwritten: that costs the record at most, and nothing behind it.

After a crash it is like the first record of a batch that a kill interrupted, and is completed: the rest of it is whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store import Message, MessageStore, Settings


@pytest.mark.parametrize("crashed", [False, True], ids=["after a clean exit", "after a crash"])
@pytest.mark.parametrize(("first", "count"), [(0, 8), (4, 4), (4, 1), (7, 1)], ids=str)
def test_what_follows_a_record_with_a_zeroed_head_is_served(
    tmp_path: Path, first: int, count: int, crashed: bool
) -> None:
    root = tmp_path / "store"
    with MessageStore.open(root, Settings.dev()) as store:
        answers = [store.put(Message("orders", b"%d" % number, keys=f"k{number}")) for number in range(5)]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(answers[2].physical_offset + first)
        log.write(bytes(count))
    if crashed:
        (root / "abort").touch()
    with MessageStore.open(root, Settings.dev()) as store:
        lost = [] if crashed else [(answers[2].physical_offset, answers[2].size)]
        assert [(each.physical_offset, each.size) for each in store.report.damage] == lost
        assert store.report.torn_bytes == 0
        served = [b"0", b"1", b"2", b"3", b"4"] if crashed else [b"0", b"1", b"3", b"4"]
        assert [message.body for message in store.get("orders", 0, 0).messages] == served
        assert [record.body for record in store.query("orders", "k4")] == [b"4"]
        assert store.put(Message("orders", b"5")).queue_offset == 5
