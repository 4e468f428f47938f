"""How a slave finds its master's log: by all addresses that a name has, and not another broker's by mistake."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from broker.conftest import Run
from support.brokers import RunningBroker
from support.clusters import FILE, caught_up, master, same_log, slave
from support.loopback import until

from penstock.broker.replication import slave as slave_module
from penstock.store import Message


def fill(store_of: RunningBroker, *, from_file: int = 0) -> None:
    """Some files of log, of which those before one are gone."""
    for _ in range(20):
        store_of.store.put(Message("orders", b"x" * 9000))
    store_of.store.catch_up()
    for _ in range(from_file):
        store_of.store.log.queue.drop_first(forced=True)


def resolve(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Has every name stand for these ports of this machine."""

    async def resolve(host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", each)) for each in ports]

    monkeypatch.setattr(slave_module, "resolve", resolve)


def test_a_slave_tries_all_addresses_of_its_masters_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            async with master(tmp_path / "m") as m:
                where = m.broker.replication.listens_at
                assert where is not None
                resolve(monkeypatch, deaf.getsockname()[1], where[1])
                m.store.put(Message("orders", b"one"))
                async with slave(tmp_path / "s", m) as s:
                    await caught_up(m, s)
                    same_log(s.store, m.store)

    run(go())


@pytest.mark.parametrize("deaf_ones", [0, 2])
def test_a_slave_whose_master_answers_nowhere_says_why(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deaf_ones: int
) -> None:
    async def go() -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            resolve(monkeypatch, *[deaf.getsockname()[1]] * deaf_ones)
            async with master(tmp_path / "m") as m, slave(tmp_path / "s", m):
                await until(lambda: "cannot connect to 127.0.0.1" in caplog.text)
        assert ("Connect call failed" if deaf_ones else "it has no address") in caplog.text

    run(go())


@pytest.mark.parametrize(("asked", "sends"), [(0, 1), (1, 0)])
def test_a_new_slave_takes_no_log_that_begins_elsewhere_than_its_masters(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: int, sends: int
) -> None:
    """haMasterAddress and masterAddr may name two brokers: the tables of one would come with the log of the other."""

    async def go() -> None:
        async with master(tmp_path / "asked") as one, master(tmp_path / "sends") as other:
            fill(one, from_file=asked)
            fill(other, from_file=sends)
            told = f"{one.address[0]}:{one.address[1]}"
            async with slave(tmp_path / "s", other, master_addr=told) as s:
                await until(lambda: "addresses of the same master" in caplog.text)
                assert not s.store.log.queue.files
        assert f"begins at {sends * FILE}, but that of the broker at masterAddr at {asked * FILE}" in caplog.text

    run(go())


def test_a_new_slave_gets_all_that_its_master_still_has(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            fill(m, from_file=1)
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                assert s.store.log.min_offset == FILE
                same_log(s.store, m.store)

    run(go())
