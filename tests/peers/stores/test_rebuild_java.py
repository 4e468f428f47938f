"""A rebuild by ranges gives the bytes that Apache RocketMQ 4.9.8 builds from the same log, and it serves them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from peers.stores.test_store_interchange import (
    SETTINGS,
    SIZES,
    assert_same_answers,
    derived,
    fill_with_java,
    fill_with_penstock,
)
from support.disks import UnsyncedFiles
from support.peers import Peer

from penstock.store import MessageStore
from penstock.store.audit import audit
from penstock.store.rebuild import rebuild

pytestmark = pytest.mark.java


@pytest.mark.parametrize("writer", ["penstock", "java"])
def test_ranges_give_what_java_builds_and_serves(tmp_path: Path, java: Peer, writer: str) -> None:
    if writer == "penstock":
        fill_with_penstock(tmp_path / "store")
    else:
        fill_with_java(java, tmp_path / "store")
    shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / "theirs" / "commitlog")
    java.open(tmp_path / "theirs", SIZES)
    java.ask("close")
    due = derived(tmp_path / "theirs")
    report = rebuild(tmp_path / "store", SETTINGS, range_size=5000, files=UnsyncedFiles())
    assert report.in_log_order == []
    assert derived(tmp_path / "store") == due
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    java.open(tmp_path / "store", SIZES)
    with MessageStore.open(tmp_path / "copy", SETTINGS) as store:
        assert_same_answers(store, java)
    java.ask("close")
    assert audit(tmp_path / "store", SETTINGS).errors == []
