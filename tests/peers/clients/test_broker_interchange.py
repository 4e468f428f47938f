"""One store, two brokers: what ours has written Java's serves, and the other way round, with the groups' progress."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from peers.clients.conftest import Connect, bodies, message, wait_for_count
from support.brokers import Served
from support.peers import JavaServed, Talker

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


def _settings(store: Path) -> dict[str, object]:
    """Java's settings for a store of ours, as `penstock store conf` says them."""
    command = [sys.executable, "-m", "penstock.cli.main", "store", "conf", str(store)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    left_out = ("storePath", "listenPort", "brokerIP", "namesrv")
    return {name.strip(): value.strip() for name, _, value in pairs if not name.startswith(left_out)}


def _send(client: Talker, first: int, count: int) -> None:
    sent = [message("orders", f"order {i}", keys=f"k{i}", tags="paid") for i in range(first, first + count)]
    answers = client.ask("send", group="p", how="sync", messages=sent)
    assert {each["status"] for each in answers} == {"SEND_OK"}


def _consume(client: Talker, name: str, count: int) -> list[str]:
    client.ask("consume", name=name, group="readers", topic="orders")
    wait_for_count(client, name, count)
    time.sleep(1)  # more than these would be a mistake, and it would show by now
    found = bodies(client.ask("consumed", name=name))
    client.ask("stop", name=name)
    return sorted(found)


def _numbered(first: int, count: int) -> list[str]:
    return sorted(f"order {i}" for i in range(first, first + count))


def test_java_serves_what_ours_wrote_and_ours_goes_on(
    tmp_path: Path, java: Connect, java_broker_jars: list[Path]
) -> None:
    store = tmp_path / "store"
    with Served(store) as ours:
        client = java(ours.namesrv)
        _send(client, 0, 20)
        assert _consume(client, "first", 20) == _numbered(0, 20)
        _send(client, 20, 10)
    with JavaServed(tmp_path / "home", store, java_broker_jars, _settings(store)) as theirs:
        client = java(theirs.namesrv)
        assert _consume(client, "second", 10) == _numbered(20, 10)
        _send(client, 30, 10)
        assert bodies(client.ask("query", group="p", topic="orders", key="k5")) == ["order 5"]
    with Served(store) as ours:
        client = java(ours.namesrv)
        assert _consume(client, "third", 10) == _numbered(30, 10)
        assert bodies(client.ask("query", group="p", topic="orders", key="k35")) == ["order 35"]


def test_ours_serves_what_java_wrote_and_java_goes_on(
    tmp_path: Path, java: Connect, java_broker_jars: list[Path]
) -> None:
    store = tmp_path / "store"
    with Served(store) as ours:  # makes the folder, so that its sizes can be asked for
        _send(java(ours.namesrv), 0, 1)
    settings = _settings(store)
    with JavaServed(tmp_path / "home", store, java_broker_jars, settings) as theirs:
        client = java(theirs.namesrv)
        _send(client, 1, 19)
        assert _consume(client, "first", 20) == _numbered(0, 20)
        _send(client, 20, 10)
    with Served(store) as ours:
        client = java(ours.namesrv)
        assert _consume(client, "second", 10) == _numbered(20, 10)
        _send(client, 30, 5)
    with JavaServed(tmp_path / "home", store, java_broker_jars, settings) as theirs:
        assert _consume(java(theirs.namesrv), "third", 5) == _numbered(30, 5)
