"""A folder with the stores of several brokers: verbs of many stores read all of them, others name the stores in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pipeline import read

from penstock.store import Message, MessageStore, Settings
from penstock.store.readonly.store_folder import find_paths, stores_in

if TYPE_CHECKING:
    from cli.conftest import Run


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """Two stores, with 3 and 4 messages, beside what a supervisor keeps."""
    for name, count in (("broker-a", 3), ("broker-b", 4)):
        with MessageStore.open(tmp_path / "stores" / name, Settings.dev()) as store:
            for number in range(count):
                assert store.put(Message("orders", b"%s %d" % (name.encode(), number), keys="all")).ok
    (tmp_path / "stores" / "penstock").mkdir()
    return tmp_path / "stores"


def test_it_stands_for_the_stores_in_it(stores: Path, tmp_path: Path) -> None:
    both = [stores / "broker-a", stores / "broker-b"]
    assert stores_in(stores) == both
    assert find_paths([str(stores)]) == both
    assert find_paths([str(tmp_path / "*")]) == both
    assert find_paths([str(both[1])]) == both[1:], "a store stands for itself"


def test_a_source_reads_them_as_one(stores: Path) -> None:
    rows = read(str(stores), topic="orders")
    counts = {broker: sum(row["broker"] == broker for row in rows) for broker in ("broker-a", "broker-b")}
    assert (len(rows), counts) == (7, {"broker-a": 3, "broker-b": 4})


def test_the_short_verbs_read_all_of_them(run: Run, stores: Path, tmp_path: Path) -> None:
    both = [str(stores / "broker-a"), str(stores / "broker-b")]
    assert [each["path"] for each in run("verify", stores, "--json").done().json["stores"]] == both
    assert [each["path"] for each in run("usage", stores, "--json").done().json["stores"]] == both
    found = run("search", stores, "--topic", "orders", "--key", "all", "--json").done().objects
    assert sorted(each["broker"] for each in found) == ["broker-a"] * 3 + ["broker-b"] * 4
    assert run("lag", stores, "--json").done()
    assert run("export", stores, "--once", "--to", tmp_path / "lake", "--json").done().json["rows"] == 7


@pytest.mark.parametrize("verb", ["info", "dump", "log", "conf", "verify", "recover", "repair", "rebuild", "retention"])
def test_a_verb_of_one_store_names_those_in_the_folder(run: Run, stores: Path, verb: str) -> None:
    refused = run("store", verb, stores).refused()
    assert "there is no store here: the folder holds the stores of several brokers: broker-a, broker-b; " in refused
    assert "name one of them" in refused
