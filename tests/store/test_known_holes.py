"""A hole in the log that looks like the first record of a batch in progress, but an earlier start listed it as damage.

Version 0.1 could leave one behind a clean close: an exception had interrupted a put. Messages that were acknowledged
since may have the queue offset of the record in the hole. So it is never published, and a view reads on behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.messages import read_queue
from support.stores import StoreHome

from penstock.cli.store.read import LogFilesReader
from penstock.format import kernels
from penstock.format.scan import Blank, Damage
from penstock.store import Message, MessageStore
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.readonly.store_folder import StoreFolder
from penstock.store.rebuild import rebuild
from penstock.store.repair import repair


@pytest.fixture
def hole(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> DamagedRange:
    """A record of the topic `lonely` in a hole, rows, and then a message of `lonely` with the same queue offset."""

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    batch = [Message("lonely", b"in the hole"), *(Message("rows", b"row") for _ in range(9))]
    with home.open() as store:
        assert store.put(Message("warm", b"w")).ok
        store.catch_up()
        store.log.appender.is_open = False
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "publish", interrupt)
            patch.setattr(kernels, "take_back", lambda *given: None)
            with pytest.raises(KeyboardInterrupt):
                store.put_many(batch)
    with home.open() as store:
        (found,) = store.report.damage
        assert store.put(Message("lonely", b"acknowledged")).queue_offset == 0
        assert store.put(Message("other", b"later")).ok
    return found


def lonely(store: MessageStore) -> list[bytes]:
    store.catch_up()
    return [record.body for record in read_queue(store, "lonely", 0)]


def lose_units(home: StoreHome) -> None:
    """A power loss: the log reached the disk, the units of the queue did not."""
    for path in home.queue_files("lonely"):
        home.write(path, 0, bytes(path.stat().st_size))
    (home.path / "penstock/dispatched.json").unlink()
    (home.path / "checkpoint").unlink()
    home.mark_crashed()


def test_a_start_after_a_crash_does_not_publish_a_record_that_an_earlier_start_listed_as_damage(
    home: StoreHome, hole: DamagedRange
) -> None:
    lose_units(home)
    with home.open() as store:
        assert store.report.damage == [hole]
        assert lonely(store) == [b"acknowledged"]


@pytest.mark.parametrize("mend", [rebuild, repair])
def test_a_rebuild_or_a_repair_does_not_publish_it_either(
    home: StoreHome, hole: DamagedRange, mend: Callable[[Path], object]
) -> None:
    lose_units(home)
    mend(home.path)
    with home.open() as store:
        assert lonely(store) == [b"acknowledged"]


def test_nothing_is_published_when_the_list_of_damage_cannot_be_read(home: StoreHome, hole: DamagedRange) -> None:
    (home.path / "penstock/damaged.json").write_bytes(b"garbage")
    lose_units(home)
    with home.open() as store:
        assert [each.physical_offset for each in store.report.damage] == [hole.physical_offset]
        assert lonely(store) == [b"acknowledged"]


def test_the_log_of_a_store_in_use_is_printed_behind_it(home: StoreHome, hole: DamagedRange) -> None:
    with home.open():
        items = list(LogFilesReader(StoreFolder.find(home.path)))
    assert [item.position for item in items if isinstance(item, Damage)] == [hole.physical_offset]
    records = [item[0] for item in items if not isinstance(item, Damage | Blank)]
    assert [record.body for record in records][-2:] == [b"acknowledged", b"later"]


def test_a_view_of_a_store_in_use_reads_on_behind_it(home: StoreHome, hole: DamagedRange) -> None:
    with home.open() as owner, home.open(read_only=True) as view:
        assert view.report.log_end == owner.log.max_offset
        assert view.report.damage == [hole]
        assert lonely(view) == [b"acknowledged"]
