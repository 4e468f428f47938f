"""Delayed messages after a kill: the log says which were delivered, so none is delivered twice, and none is lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, RunningBroker, Served, ok, records
from support.loopback import until

from penstock.broker import delay_recovery
from penstock.protocol.codes import ResponseCode
from penstock.remoting.connection import connect
from penstock.store import Message
from penstock.store.files.file_io import Files

if TYPE_CHECKING:
    from broker.conftest import Run

AT_ONCE = {"message_delay_level": "0s 1h"}
BORN = 1_600_000_000_000


async def send(client: RawClient, *bodies: bytes, level: int = 1, **changes: Any) -> None:
    for body in bodies:
        ok(await client.send("orders", body, properties={"DELAY": str(level)}, bornTimestamp=BORN, **changes))


async def delivered(broker: RunningBroker, count: int) -> list[bytes]:
    """The bodies of the queue once there are so many, and nothing is left to deliver."""
    done = broker.state.delayed.progress
    await until(
        lambda: broker.store.max_offset("orders", 0) >= count and done().get(1, (0, 0)) == (at_end(broker),) * 2
    )
    client, found = await broker.client(), []
    while len(found) < broker.store.max_offset("orders", 0):
        found += records(await client.pull("orders", len(found)))
    return [record.body for record in found]


def at_end(broker: RunningBroker) -> int:
    return broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0)


def killed(home: BrokerHome) -> BrokerHome:
    """What a kill would leave of a broker that runs: its files as they are now."""
    copy = home.path.with_name(home.path.name + "-killed")
    shutil.copytree(home.path, copy)
    return BrokerHome(copy)


def config(home: BrokerHome, name: str) -> Path:
    return home.path / "config" / name


def test_a_kill_before_the_first_save_doubles_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"a", b"b", b"c")
            await delivered(broker, 3)
            left = killed(home)
        async with left.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"after")
            assert await delivered(broker, 4) == [b"a", b"b", b"c", b"after"]

    run(check())


def test_a_kill_after_a_save_doubles_nothing_and_what_was_not_delivered_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"saved")
            await delivered(broker, 1)
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            await send(client, b"a", b"b", b"a")
            await delivered(broker, 4)
            broker.state.delayed.stop()
            await send(client, b"c", b"d")
            left = killed(home)
        async with left.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 6) == [b"saved", b"a", b"b", b"a", b"c", b"d"]

    run(check())


@pytest.mark.parametrize("saved", [False, True])
def test_of_two_equal_messages_both_are_delivered(home: BrokerHome, run: Run, saved: bool) -> None:
    """The record of the first stands for the first alone, whether or not the saved table counts it."""

    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            await send(client, b"twin")
            await delivered(broker, 1)
            if not saved:
                broker.state.delayed.stop()
                await send(client, b"twin")
                left = killed(home)
        if saved:
            async with home.running(store=AT_ONCE) as broker:
                broker.state.delayed.stop()
                await send(await broker.client(), b"twin")
                left = killed(home)
        async with left.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 2) == [b"twin", b"twin"]

    run(check())


def test_a_message_that_a_client_made_to_look_delivered_is_none(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            broker.state.delayed.stop()
            await send(client, b"real")
            forged = {"CLUSTER": "DefaultCluster", "REAL_TOPIC": "orders", "REAL_QID": "0"}
            for level in ("", "0", "-1"):
                properties = {"DELAY": level, **forged} if level else forged
                ok(await client.send("orders", b"real", properties=properties, bornTimestamp=BORN))
            for transaction in (4, 12):  # not routed to the schedule topic, and not in a queue
                properties = {"DELAY": "1", **forged}
                await client.send("orders", b"real", properties=properties, bornTimestamp=BORN, sysFlag=transaction)
            before = broker.store.max_offset("orders", 0)
            left = killed(home)
        async with left.running(store=AT_ONCE) as broker:
            assert len(await delivered(broker, before + 1)) == before + 1

    run(check())


def test_what_can_never_be_delivered_does_not_end_the_search(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            await send(client, b"a")
            illegal = {"DELAY": "1", "REAL_TOPIC": "../orders", "REAL_QID": "0"}
            assert broker.store.put(Message("SCHEDULE_TOPIC_XXXX", b"", properties=illegal)).ok
            await send(client, b"b")
            await delivered(broker, 2)
            left = killed(home)
        async with left.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 2) == [b"a", b"b"]

    run(check())


def test_a_crash_between_the_note_and_the_table_doubles_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        for body in (b"a", b"b"):
            async with home.running(store=AT_ONCE) as broker:
                await send(await broker.client(), body)
                await delivered(broker, 1)
        config(home, "delayOffset.json.bak").replace(config(home, "delayOffset.json"))
        async with home.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 2) == [b"a", b"b"]

    run(check())


def test_without_a_note_for_the_table_everything_since_is_delivered_again(home: BrokerHome, run: Run) -> None:
    """As when RocketMQ saved the table last: a guess could lose a message."""

    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"a")
            await delivered(broker, 1)
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"b")
            await delivered(broker, 2)
            left = killed(home)
        (left.path / "penstock" / "delivered.json").write_text("garbage")
        async with left.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 3) == [b"a", b"b", b"b"]

    run(check())


def test_the_search_has_limits_and_what_lies_behind_them_is_delivered_again(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"a", b"b", b"c")
            await delivered(broker, 3)
            left = killed(home)
        monkeypatch.setattr(delay_recovery, "MAX_FOUND", 2)
        async with left.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 4) == [b"a", b"b", b"c", b"c"]

    run(check())


def test_a_search_that_fails_is_reported_and_everything_since_is_delivered_again(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("the log cannot be searched")

    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"a")
            await delivered(broker, 1)
            left = killed(home)
        monkeypatch.setattr("penstock.broker.delayed_delivery.find_delivered", fail)
        async with left.running(store=AT_ONCE) as broker:
            assert await delivered(broker, 2) == [b"a", b"a"]
            assert "the log cannot be searched" in str(broker.broker.health().reasons)

    run(check())


def test_a_stop_ends_a_search(home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    searching, go_on = threading.Event(), threading.Event()

    def wait(*arguments: object) -> dict[int, int]:
        searching.set()
        go_on.wait()
        return {1: 1}

    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send(await broker.client(), b"a")
            await delivered(broker, 1)
            left = killed(home)
        monkeypatch.setattr("penstock.broker.delayed_delivery.find_delivered", wait)
        async with left.running(store=AT_ONCE) as broker:
            await until(searching.is_set)
            broker.state.delayed.start()  # does not start a second search
            broker.state.delayed.stop()
            await send(await broker.client(), b"b")
            assert broker.store.max_offset("orders", 0) == 1
            broker.state.delayed.start()
            broker.state.delayed.stop()
            broker.state.delayed.start()  # at once: it is not taken for the search that was just ended
            go_on.set()
            assert await delivered(broker, 2) == [b"a", b"b"]

    run(check())


def test_the_note_follows_a_log_that_grows_without_deliveries(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a start would have hours of the log to search."""
    monkeypatch.setattr("penstock.broker.delayed_delivery._LOG_STEP", 1000)

    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            delayed = broker.state.delayed
            before = delayed.version()
            ok(await (await broker.client()).send("other", bytes(1000)))
            assert delayed.version() != before

    run(check())


ROUNDS, EACH = 5, 150
LAST = b"last"


def test_a_broker_that_is_killed_again_and_again_delivers_each_message_once(tmp_path: Path) -> None:
    """A kill in mid delivery, five times, always before delayOffset.json is saved."""
    served = Served(tmp_path / "store", "messageDelayLevel=0s 1h")

    async def connected() -> RawClient:
        return RawClient(await connect(("127.0.0.1", served.port)), asyncio.Queue())

    async def send_some(first: int) -> None:
        client = await connected()
        await asyncio.gather(*(send(client, b"%d" % number) for number in range(first, first + EACH)))
        client.close()

    async def pull_until_last() -> list[bytes]:
        client, found = await connected(), [b""]
        await send(client, LAST)
        while found[-1] != LAST:
            reply = await client.pull("orders", len(found) - 1)
            found += [record.body for record in records(reply)] if reply.code == ResponseCode.SUCCESS else []
        client.close()
        return found[1:]

    for number in range(ROUNDS):
        served.start()
        asyncio.run(send_some(number * EACH))
        served.kill()
    served.start()
    found = Counter(asyncio.run(pull_until_last()))
    assert served.stop() == 0
    assert found.keys() == {LAST, *(b"%d" % number for number in range(ROUNDS * EACH))}
    assert [body for body, count in found.items() if count > 1] == []


@pytest.mark.parametrize(
    ("log_end", "read", "left"),
    [
        (300, {1: 3}, None),
        (299, {1: 3}, {1: 2}),
        (299, {1: 2}, {1: 2}),
        (250, {1: 7}, {1: 2}),
        (99, {1: 3}, {}),
        (0, {1: 3}, {}),
        (0, {}, {}),
    ],
)
def test_a_table_that_rests_on_a_lost_part_of_the_log_goes_back_to_one_that_does_not(
    tmp_path: Path, log_end: int, read: dict[int, int], left: dict[int, int] | None
) -> None:
    notes = delay_recovery.SaveNotes(Files(), tmp_path / "delivered.json")
    for offset in (0, 1, 2, 3):
        notes.add({1: offset} if offset else {}, 100 * offset)
    for offset in (1, 2, 3):
        notes.add({1: offset}, 100 * offset)
    assert notes.roll_back(read, log_end) == left
    assert notes.roll_back({} if left is None else left, log_end) is None, "what is lost was forgotten"
