"""Settings of an open store that are changed: at once, for every way in, all or none."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.stores import AgedStore, StoreHome

from penstock.errors import BadSettings, StoreFailed
from penstock.store import Message, MessageStore, PutStatus
from penstock.store.settings import LIVE

pytestmark = pytest.mark.usefixtures("kernels_name")


def statuses(store: MessageStore, size: int) -> set[PutStatus]:
    """The statuses of messages with bodies of this size, put in every way."""
    message = Message("T", bytes(size))
    batch = pa.RecordBatch.from_pydict({"topic": ["T"], "body": [bytes(size)]})
    return {
        store.put(message).status,
        store.put(Message("T", bytes(size), properties={"DELAY": "1"})).status,
        store.put_async(message).result(30).status,
        store.put_many([message, message]).status,
        store.append(message).status,
        store.append_many([message]).status,
        store.put_arrow(batch).status,
    }


def test_the_largest_message_is_changed_for_every_put(home: StoreHome) -> None:
    store = home.open(max_message_size=100)
    assert statuses(store, 101) == {PutStatus.MESSAGE_ILLEGAL}
    store.change_settings(max_message_size=200)
    assert statuses(store, 101) == {PutStatus.PUT_OK}
    assert statuses(store, 201) == {PutStatus.MESSAGE_ILLEGAL}
    store.change_settings(max_message_size=50)
    assert statuses(store, 51) == {PutStatus.MESSAGE_ILLEGAL}
    assert statuses(store, 50) == {PutStatus.PUT_OK}
    assert store.settings.max_message_size == 50


def test_the_cleaner_follows_changed_ages_and_hours(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(3)
    aged.age(10)
    store, hour = aged.store, aged.hour
    assert aged.run() == []
    store.change_settings(file_reserved_time=9)
    assert aged.run() == [], "it is not the hour"
    assert [file.cause is not None for file in store.explain_retention().files] == [True, True, False]
    store.change_settings(delete_when=f"{hour:02d}", file_reserved_time=11)
    assert aged.run() == [], "nothing is old"
    store.change_settings(file_reserved_time=9)
    assert len(aged.run()) == 2


def test_the_disk_is_judged_by_a_changed_ratio(home: StoreHome) -> None:
    aged = AgedStore(home)
    retention = aged.retention
    for percent in (10, 95):
        aged.store.change_settings(disk_max_used_space_ratio=percent)
        assert retention.limits.old_files_ratio == percent / 100
    aged.store.change_settings(disk_max_used_space_ratio=3)
    assert aged.store.settings.disk_max_used_space_ratio == 10, "kept within its bounds, as at a start"


@pytest.mark.parametrize(
    "changes",
    [
        {"delete_when": "24"},
        {"file_reserved_time": -1},
        {"max_message_size": "large"},
        {"flush_disk_type": "SYNC_FLUSH"},
        {"file_reserved_time": 1, "store_path_root_dir": "/elsewhere"},
    ],
)
def test_a_change_that_is_refused_changes_nothing(home: StoreHome, changes: dict[str, object]) -> None:
    store = home.open()
    before = store.settings
    with pytest.raises(BadSettings):
        store.change_settings(**changes)
    assert store.settings is before


def test_a_view_is_not_changed(home: StoreHome) -> None:
    home.open().close()
    with MessageStore.open(home.path, read_only=True) as view, pytest.raises(StoreFailed, match="read-only"):
        view.change_settings(file_reserved_time=1)


def test_no_setting_that_shapes_files_can_be_changed() -> None:
    assert set(LIVE) == {"delete_when", "disk_max_used_space_ratio", "file_reserved_time", "max_message_size"}
