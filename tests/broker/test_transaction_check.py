"""Producers are asked about transactions that nobody ended, whatever happens in between."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import TYPE_CHECKING

from support.brokers import (
    AT_ONCE,
    COMMIT,
    GIVEN_UP,
    HALF,
    OP,
    ROLLBACK,
    SYSTEM_GROUP,
    UNKNOWN,
    BrokerHome,
    answer,
    asked,
    bodies,
    end,
    ending,
    half_messages,
    make_round,
    ok,
    pulled,
    send_half,
)
from support.effort import chosen_seed
from support.loopback import until

from penstock.broker.transactions import EndedHalves
from penstock.format.message_id import decode_message_id
from penstock.format.record import decode_record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import Message
from penstock.store.running_flags import StoreFault

if TYPE_CHECKING:
    from broker.conftest import Run


def test_a_live_producer_is_asked_and_its_answer_counts(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(transaction_time_out=0, transaction_check_interval=20) as broker:
            client, producer = await broker.client(), await broker.client()
            ok(await producer.heartbeat("p", produces=("PID_test",)))
            half = await send_half(client, b"paid", queueId=1)
            question = await asked(producer)
            shown = decode_record(question.body)
            assert (shown.topic, shown.queue_id, shown.body) == ("orders", 1, b"paid")
            assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert question.ext["msgId"] == question.ext["transactionId"] == "U1"
            assert question.ext["tranStateTableOffset"] > half.ext["queueOffset"]
            assert decode_message_id(question.ext["offsetMsgId"])[1] == int(question.ext["commitLogOffset"])
            await answer(producer, question, COMMIT)
            assert bodies(await pulled(broker, client, "orders", queueId=1)) == [b"paid"]

    run(check())


def test_under_sync_flush_a_producer_is_asked_as_well(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE, sync=True) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            ended = await send_half(client, b"ended")
            await send_half(client, b"open")
            client.tell(RequestCode.END_TRANSACTION, **ending(ended, COMMIT))
            ok(await client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0))  # then the other was served
            assert await make_round(broker) == 1
            question = await asked(client)
            assert decode_record(question.body).body == b"open"
            await answer(client, question, COMMIT)
            assert bodies(await pulled(broker, client, "orders", 1)) == [b"open"]

    run(check())


def test_one_that_stays_unknown_is_asked_about_again_and_then_given_up(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE, transaction_check_max=2) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            await send_half(client, b"lost")
            for times in ("1", "2"):
                assert await make_round(broker) == 1
                question = await asked(client)
                assert decode_record(question.body).properties["TRANSACTION_CHECK_TIMES"] == times
                await answer(client, question, UNKNOWN)
            assert await make_round(broker) == 1
            (kept,) = half_messages(broker, GIVEN_UP)
            assert (kept.body, kept.properties["REAL_TOPIC"]) == (b"lost", "orders")
            assert broker.state.topics.find(GIVEN_UP) is not None
            assert await make_round(broker) == 0
            assert client.asked.empty()

    run(check())


def test_an_administrator_has_a_message_that_was_given_up_asked_about_anew(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE, transaction_check_max=0) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            await send_half(client, b"found")
            await make_round(broker)
            (kept,) = half_messages(broker, GIVEN_UP)
            broker.state.settings.change(transaction_check_max=5)
            ok(await client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=kept.msg_id))
            assert await make_round(broker) == 1
            await answer(client, await asked(client), COMMIT)
            assert bodies(await pulled(broker, client, "orders")) == [b"found"]
            plain = ok(await client.send("orders"))
            for wrong in (plain.ext["msgId"], "nonsense", ""):
                reply = await client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=wrong)
                assert reply.code == ResponseCode.SYSTEM_ERROR

    run(check())


def test_a_message_that_is_as_old_as_files_are_kept_is_given_up(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            await send_half(client, bornTimestamp=1_000_000_000_000)
            assert await make_round(broker) == 1
            assert len(half_messages(broker, GIVEN_UP)) == 1

    run(check())


def test_nobody_is_asked_before_the_time_out(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(transaction_time_out=3_600_000) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            await send_half(client)
            assert await make_round(broker) == 0
            broker.state.settings.change(transaction_time_out=0)
            assert await make_round(broker) == 1

    run(check())


def test_one_that_wants_more_time_does_not_hold_up_those_behind_it(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            patient = await send_half(client, b"patient", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
            await send_half(client, b"plain")
            for round_number in range(1, 4):
                assert await make_round(broker) == 1, round_number
                question = await asked(client)
                assert decode_record(question.body).body == b"plain"
            await answer(client, question, COMMIT)
            ok(await end(client, patient, COMMIT))
            assert bodies(await pulled(broker, client, "orders")) == [b"plain", b"patient"]
            assert await make_round(broker) == 0
            assert await make_round(broker) == 0
            assert broker.state.offsets.query(SYSTEM_GROUP, HALF, 0) == broker.store.max_offset(HALF, 0)
            assert broker.state.offsets.query(SYSTEM_GROUP, OP, 0) == broker.store.max_offset(OP, 0)

    run(check())


def test_a_message_may_want_less_time_than_the_others(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(transaction_time_out=3_600_000) as broker:
            client = await broker.client()
            await send_half(client, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "0"})
            assert await make_round(broker) == 1

    run(check())


def test_a_producer_that_is_gone_is_asked_when_it_is_back(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client, producer = await broker.client(), await broker.client()
            ok(await producer.heartbeat("p", produces=("PID_test",)))
            await send_half(client)
            producer.close()
            await until(lambda: not broker.state.clients.producers("PID_test"))
            assert await make_round(broker) == 1
            again = await broker.client()
            ok(await again.heartbeat("p2", produces=("PID_test",)))
            assert await make_round(broker) == 1
            await answer(again, await asked(again), ROLLBACK)
            assert await make_round(broker) == 0
            assert not half_messages(broker, "orders")

    run(check())


# -- stopping in the middle --------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_was(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            ended = await send_half(client, b"ended")
            await send_half(client, b"open")
            ok(await end(client, ended, COMMIT))
            assert await make_round(broker) == 1
        async with home.running(**AT_ONCE) as broker:
            assert broker.state.offsets.query(SYSTEM_GROUP, HALF, 0) == 2
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            assert await make_round(broker) == 1
            question = await asked(client)
            assert decode_record(question.body).properties["TRANSACTION_CHECK_TIMES"] == "2"
            await answer(client, question, COMMIT)
            assert bodies(await pulled(broker, client, "orders", 1)) == [b"open"]
            assert await make_round(broker) == 0

    run(check())


def test_a_crash_that_forgets_the_progress_asks_nobody_twice(home: BrokerHome, run: Run) -> None:
    """The progress is saved now and then; the marks are in the log."""

    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            ended = await send_half(client, b"ended")
            await send_half(client, b"open")
            ok(await end(client, ended, ROLLBACK))
            assert await make_round(broker) == 1
        (home.path / "config" / "consumerOffset.json").unlink()
        (home.path / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            assert await make_round(broker) == 1
            assert decode_record((await asked(client)).body).body == b"open"
            assert client.asked.empty()
            assert len(half_messages(broker, HALF)) == 4

    run(check())


def test_while_the_disk_is_full_half_messages_wait(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            half = await send_half(client)
            broker.store.flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
            assert (await end(client, half, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert await make_round(broker) == 0
            assert broker.state.offsets.query(SYSTEM_GROUP, HALF, 0) == 0
            broker.store.flags.clear(StoreFault.DISK_FULL)
            assert await make_round(broker) == 1
            await answer(client, await asked(client), COMMIT)
            assert bodies(await pulled(broker, client, "orders")) == [b"paid"]

    run(check())


# -- what is kept in memory --------------------------------------------------------------------------------------


def test_one_that_wants_more_time_costs_a_bit_for_each_that_ended_behind_it() -> None:
    ended = EndedHalves()
    tracemalloc.start()
    try:
        for number in range(1, 200_000):
            ended.add(number, number - 1)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 200_000
    assert 0 not in ended
    assert all(number in ended for number in range(1, 200_000))
    assert ended.first_mark == 0


def test_the_first_mark_that_is_needed_is_never_behind_one_that_is() -> None:
    ended, random = EndedHalves(), Random(chosen_seed())
    marks: dict[int, int] = {}
    begin = 0
    for mark in range(20_000):
        half = begin + random.randrange(20_000)
        ended.add(half, mark)
        marks[half] = mark
        if not mark % 100:
            begin += random.randrange(5_000)
            ended.move_to(begin)
            marks = {half: mark for half, mark in marks.items() if half >= begin}
            assert (ended.first_mark is None) == (not marks)
            assert not marks or (ended.first_mark is not None and ended.first_mark <= min(marks.values()))
            assert {half for half in range(begin, begin + 20_000) if half in ended} == set(marks)


def test_what_ended_behind_the_window_is_read_again_when_the_window_is_there() -> None:
    ended = EndedHalves(window=10)
    ended.add(3, 0)
    ended.add(12, 1)
    ended.add(11, 2)
    assert (3 in ended, 11 in ended, 12 in ended, ended.first_mark) == (True, False, False, 0)
    assert ended.read_again_from() is None
    ended.move_to(4)
    assert ended.first_mark == 1
    assert ended.read_again_from() == 1
    assert ended.read_again_from() is None


def test_beyond_the_window_nobody_is_asked_and_nothing_is_lost(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            broker.broker.transaction_check._ended = EndedHalves(window=3)
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            patient = await send_half(client, b"patient", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
            for number in range(8):
                half = await send_half(client, b"%d" % number)
                ok(await end(client, half, COMMIT))
            await send_half(client, b"open")
            assert await make_round(broker) == 0, "the one that is open lies behind the window"
            assert broker.state.offsets.query(SYSTEM_GROUP, OP, 0) == 0
            ok(await end(client, patient, COMMIT))
            rounds = [await make_round(broker) for _ in range(4)]
            assert sum(rounds) == 1
            assert decode_record((await asked(client)).body).body == b"open"
            assert client.asked.empty()

    run(check())


def test_a_mark_that_names_no_half_message_is_ignored(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            for nonsense in (b"9" * 5000, b"999999999999", b"-1", b"x,,"):
                assert broker.store.put(Message(OP, nonsense, tags="d")).stored
            client = await broker.client()
            ok(await client.heartbeat("p", produces=("PID_test",)))
            await send_half(client, b"open")
            assert await make_round(broker) == 1
            assert decode_record((await asked(client)).body).body == b"open"
            assert await make_round(broker) == 1
            assert broker.state.offsets.query(SYSTEM_GROUP, OP, 0) >= 4

    run(check())
