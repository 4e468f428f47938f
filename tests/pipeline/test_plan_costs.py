"""What planning does not read: most of a long queue, and an index that is not needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.pipeline import store_source as store_source_module
from penstock.pipeline.store_source import SingleStore
from penstock.store import Message
from penstock.store.readonly.store_folder import StoreFolder


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    """A store with 40 messages in one queue, every fourth of them large."""
    home = StoreHome(tmp_path / "store")
    store = home.open()
    for number in range(40):
        store.put(Message("orders", bytes(700 if number % 4 == 0 else 100), keys=(f"k{number:02}",)))
    home.close_all()
    return home


def one(home: StoreHome, *, by_key: bool = False) -> SingleStore:
    return SingleStore(StoreFolder.find(home.path), "store", following=False, by_key=by_key)


def test_the_size_of_a_range_is_that_of_its_records(home: StoreHome) -> None:
    place = one(home)
    large, small = (place.size("orders", 0, first, first + 1) for first in (0, 1))
    assert large - small == 600
    assert place.size("orders", 0, 0, 40) == 10 * large + 30 * small
    assert place.size("orders", 0, 3, 6) == large + 2 * small
    assert place.size("orders", 0, 5, 5) == 0
    place.close()


def test_the_size_of_a_long_range_is_guessed_from_pages_all_over_it(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = one(home)
    exact = place.size("orders", 0, 0, 40)
    monkeypatch.setattr(store_source_module, "_PAGE_UNITS", 4)
    monkeypatch.setattr(store_source_module, "_SAMPLED_PAGES", 5)
    assert place.size("orders", 0, 0, 40) == exact  # each page of four has one large message
    monkeypatch.setattr(store_source_module, "_PAGE_UNITS", 1)
    assert place.size("orders", 0, 0, 40) > 2 * exact  # only large messages were looked at
    place.close()


def test_a_store_without_its_index_has_it_built_only_where_keys_are_asked_for(home: StoreHome) -> None:
    shutil.rmtree(home.path / "index")
    place = one(home)
    assert list(place.queues()) == [("orders", 0)]
    with pytest.raises(BadStore, match="there is no index"):
        place.view.query_many("orders", ["k03"])
    place.close()
    place = one(home, by_key=True)
    assert len(place.view.query_many("orders", ["k03"])[1]) == 1
    place.close()
