"""What only RocketMQ 5 can carry on is refused before anything changes, and can still be looked into."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.errors import BadStore
from penstock.store import Message, MessageStore, Settings


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with MessageStore.open(path, Settings.dev()) as opened:
        assert opened.put(Message("orders", b"two shirts", keys=("order_1",))).ok
    return path


@pytest.mark.parametrize(
    ("name", "why"),
    [("consumequeue_rocksdb/CURRENT", "queues in RocksDB"), ("timerlog/00000000000000000000", "at a set time")],
)
def test_a_store_that_rocketmq_5_must_carry_on_is_not_opened_but_shown(store: Path, name: str, why: str) -> None:
    (store / name).parent.mkdir()
    (store / name).write_bytes(b"x")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.name != "lock"}
    with pytest.raises(BadStore, match=f"{(store / name).parent}: .*{why}.*; .*move this folder elsewhere"):
        MessageStore.open(store, Settings.dev())
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.name != "lock"} == before
    assert main(["store", "query", str(store), "--topic", "orders", "--key", "order_1"]) == 0


def test_a_timer_wheel_without_messages_is_no_hindrance(store: Path) -> None:
    (store / "timerwheel").write_bytes(bytes(64))
    (store / "timerlog").mkdir()
    with MessageStore.open(store, Settings.dev()) as opened:
        assert opened.put(Message("orders", b"more")).ok
