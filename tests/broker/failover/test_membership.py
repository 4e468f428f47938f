"""penstock/failover.json: the id of a replica, and whether it may have lost what it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.failover import membership
from penstock.broker.failover.consensus_engine import State
from penstock.broker.failover.membership import Membership
from penstock.errors import BadStore
from penstock.store import MessageStore, Settings


def opened(path: Path, **settings: object) -> MessageStore:
    return MessageStore.open(path, Settings.dev(**settings))


def reboot(monkeypatch: pytest.MonkeyPatch, path: Path, boot_id: str) -> None:
    file = path / "boot_id"
    file.write_text(boot_id)
    monkeypatch.setattr(membership, "_BOOT_ID", file)


def crash(path: Path) -> None:
    """Leaves the store as a process that was killed does."""
    (path / "store" / "abort").write_bytes(b"")


def state(epoch: int, *sync: int) -> State:
    return State(epoch=epoch, master=sync[0], sync=sync, ids={"a": 1, "b": 2}, next_id=3)


def test_an_id_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert Membership(store).id == 0
        Membership(store).joined(3)
    with opened(tmp_path) as store:
        assert Membership(store).id == 3


@pytest.mark.parametrize(
    ("flush", "is_killed", "boots", "is_tainted"),
    [
        ("ASYNC_FLUSH", True, True, True),
        ("SYNC_FLUSH", True, True, False),
        ("ASYNC_FLUSH", False, True, False),
        ("ASYNC_FLUSH", True, False, False),
    ],
)
def test_a_replica_is_tainted_if_its_machine_lost_what_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, is_killed: bool, boots: bool, is_tainted: bool
) -> None:
    reboot(monkeypatch, tmp_path, "one")
    with opened(tmp_path / "store", flush_disk_type=flush) as store:
        Membership(store).joined(1)
    if is_killed:
        crash(tmp_path)
    if boots:
        reboot(monkeypatch, tmp_path, "two")
    with opened(tmp_path / "store", flush_disk_type=flush) as store:
        assert Membership(store).is_tainted == is_tainted


def test_a_tainted_replica_stays_so_until_it_is_in_a_sync_set_of_a_later_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reboot(monkeypatch, tmp_path, "one")
    with opened(tmp_path / "store") as store:
        store.epochs.begin(4, 0)
        Membership(store).joined(2)
    crash(tmp_path)
    reboot(monkeypatch, tmp_path, "two")
    with opened(tmp_path / "store"):
        pass
    crash(tmp_path)
    with opened(tmp_path / "store") as store:
        assert Membership(store).is_tainted
    with opened(tmp_path / "store") as store:
        found = Membership(store)
        assert found.is_tainted
        for still in (state(4, 1, 2), state(5, 1)):
            found.seen(still)
            assert found.is_tainted
        found.seen(state(5, 1, 2))
        assert not found.is_tainted
        assert not Membership(store).is_tainted


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        Membership(store).joined(3)
        store.layout.failover.write_text("{")
        with pytest.raises(BadStore, match=r"failover\.json"):
            Membership(store)
