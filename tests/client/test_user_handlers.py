"""Ways to consume: loops, batches, a handler for each topic, and a consumer that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client.test_ordered import orders_of
from client.test_process_queue import message
from client.test_retries import dead_letters, send
from support.clients import SOON_S, Gathered, until_true

from penstock.client import (
    DeadLetter,
    Later,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    sync,
)
from penstock.client.assigned_queues import ProcessQueue
from penstock.client.message_delivery import FairQueues
from penstock.client.user_handlers import HandlerRunner
from penstock.errors import BadMessage, BadSettings
from penstock.format.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client.conftest import Run

    from penstock.testing import LocalBroker

ORDERS = {"orders": "*"}
FIRST = PushOptions(consume_from="first")


# -- loops -----------------------------------------------------------------------------------------------------------


def test_a_loop_consumes_a_message_when_it_asks_for_the_next_one(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        bodies = {b"%d" % number for number in range(10)}
        await send(b, *bodies)
        seen: list[bytes] = []
        async with PushConsumer("CID", namesrv=b.namesrv, subscriptions=ORDERS, options=FIRST) as consumer:
            async with asyncio.timeout(SOON_S):
                async for received in consumer:
                    seen.append(received.body)
                    if len(seen) == 6:
                        break  # the sixth is not consumed
        assert len(set(seen)) == 6
        again = Gathered()
        async with PushConsumer("CID", again, b.namesrv, subscriptions=ORDERS, options=FIRST):
            await again.until_has(bodies - set(seen[:5]))
        assert seen[5] in again.bodies

    run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_the_next_loop_begins_with_the_message_at_which_the_last_one_was_left(
    run: Run, b: LocalBroker, ordered: bool
) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            await producer.send_batch([Message("orders", b"%d" % number) for number in range(4)])
        options = PushOptions(consume_from="first", ordered=ordered, max_in_flight=1)
        seen = []
        async with (
            PushConsumer("CID", namesrv=b.namesrv, subscriptions=ORDERS, options=options) as consumer,
            asyncio.timeout(SOON_S),
        ):
            async for received in consumer:
                seen.append(received.text)
                if len(seen) == 2:
                    break
            async for received in consumer:
                seen.append(received.text)
                if received.text == "3":
                    break
        assert seen == ["0", "1", "1", "2", "3"]

    run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_queues_move_to_another_member_although_nobody_loops(run: Run, b: LocalBroker, ordered: bool) -> None:
    async def main() -> None:
        bodies = {b"%d" % number for number in range(40)}
        await send(b, *bodies)
        options = PushOptions(consume_from="first", ordered=ordered)
        async with PushConsumer("CID", namesrv=b.namesrv, subscriptions=ORDERS, options=options) as idle:
            await until_true(lambda: len(orders_of(idle)) == 4)
            gathered = Gathered()
            async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options) as busy:
                await until_true(lambda: len(orders_of(idle)) == 2 and len(orders_of(busy)) == 2)
                own = orders_of(busy)
                await gathered.until(lambda: {each.queue_id for each in gathered.messages} == own)
                left: set[bytes] = set()
                async with asyncio.timeout(SOON_S):
                    async for received in idle:
                        assert received.queue_id not in own, "the queue is another member's now"
                        left.add(received.body)
                        if len(left) == 20:
                            break

    run(main())


def test_a_loop_ends_when_the_consumer_is_closed(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        seen = []
        consumer = await PushConsumer("CID", namesrv=b.namesrv, subscriptions=ORDERS).start()

        async def loop() -> None:
            async for received in consumer:
                seen.append(received.text)

        task = asyncio.create_task(loop())
        await send(b, b"one")
        await until_true(lambda: seen == ["one"])
        await consumer.close()
        await asyncio.wait_for(task, SOON_S)

    run(main())


def test_a_loop_can_reject_a_message(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        await send(b, b"good", b"bad", b"hopeless")
        seen: list[bytes] = []
        async with PushConsumer("CID", namesrv=b.namesrv, subscriptions=ORDERS, options=FIRST) as consumer:
            async with asyncio.timeout(SOON_S):
                async for received in consumer:
                    seen.append(received.body)
                    if received.body == b"bad" and received.reconsume_times == 0:
                        consumer.reject(received)
                        with pytest.raises(BadSettings, match="is not being consumed"):
                            consumer.reject(received)
                    elif received.body == b"hopeless":
                        consumer.reject(received, DeadLetter())
                    if seen.count(b"bad") == 2 and b"good" in seen and b"hopeless" in seen:
                        break
            async with asyncio.timeout(SOON_S):
                while not await dead_letters(b):
                    await asyncio.sleep(0.05)
        assert [letter.body for letter in await dead_letters(b)] == [b"hopeless"]

    run(main())


def test_plain_code_loops_too(b: LocalBroker) -> None:
    seen = set()
    with (
        sync.Producer("PID", b.namesrv) as producer,
        sync.PushConsumer("CID", namesrv=b.namesrv, subscriptions=ORDERS) as consumer,
    ):
        for number in range(5):
            producer.send(Message("orders", b"%d" % number))
        for received in consumer:
            seen.add(received.text)
            if received.text == "4" and received.reconsume_times == 0:
                consumer.reject(received, Later(1))
                seen.discard("4")
            if len(seen) == 5:
                break
    assert seen == set("01234")


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_handler_gets_lists_of_one_queue_and_answers_for_each_message(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        sizes: list[int] = []
        gathered = Gathered()

        async def handle(batch: list[ReceivedMessage]) -> Sequence[Later | None]:
            sizes.append(len(batch))
            assert len({each.queue for each in batch}) == 1
            return [
                await gathered(each) or (Later() if each.body == b"7" and each.reconsume_times == 0 else None)  # type: ignore[misc]
                for each in batch
            ]

        async with Producer("PID", b.namesrv) as producer:
            await producer.send_batch([Message("orders", b"%d" % number) for number in range(20)])
        options = PushOptions(consume_from="first", batch_size=8)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await gathered.until_count(21)
        assert max(sizes) <= 8
        assert sum(sizes) == 21
        assert 8 in sizes
        assert gathered.counts[b"7"] == 2

    run(main())


@pytest.mark.parametrize("result", ["raise", "too few"])
def test_a_batch_whose_handler_fails_comes_again_as_a_whole(run: Run, b: LocalBroker, result: str) -> None:
    async def main() -> None:
        gathered = Gathered()

        async def handle(batch: list[ReceivedMessage]) -> list[None]:
            for each in batch:
                await gathered(each)
            if batch[0].reconsume_times == 0:
                if result == "raise":
                    raise ValueError("not today")
                return [None] * (len(batch) + 1)
            return [None] * len(batch)

        async with Producer("PID", b.namesrv) as producer:
            await producer.send_batch([Message("orders", b"%d" % number) for number in range(4)])
        options = PushOptions(consume_from="first", batch_size=4)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await gathered.until_count(8)
        assert set(gathered.counts.values()) == {2}

    run(main())


def test_an_ordered_batch_goes_on_behind_the_last_message_before_a_failure(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        batches: list[list[bytes]] = []
        done = asyncio.Event()

        async def handle(batch: list[ReceivedMessage]) -> list[Later | None]:
            batches.append([each.body for each in batch])
            if b"5" in batches[-1] and batch[-1].body == b"5":
                done.set()
            return [Later() if each.body == b"2" and each.reconsume_times == 0 else None for each in batch]

        async with Producer("PID", b.namesrv) as producer:
            await producer.send_batch([Message("orders", b"%d" % number) for number in range(6)])
        b.settle()
        options = PushOptions(consume_from="first", batch_size=4, ordered=True, suspend_s=0.01)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await asyncio.wait_for(done.wait(), SOON_S)
        assert batches == [[b"0", b"1", b"2", b"3"], [b"2", b"3", b"4", b"5"]]

    run(main())


# -- a handler for each topic ----------------------------------------------------------------------------------------


def test_a_topic_has_the_handler_that_is_decorated_for_it(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        orders, refunds, others = Gathered(), Gathered(), Gathered()
        consumer = PushConsumer("CID", others, b.namesrv, subscriptions={"others": "*"})
        consumer.on("orders", "paid")(orders)

        @consumer.on("refunds")
        async def refund(received: ReceivedMessage) -> Later | None:
            await refunds(received)
            return Later() if received.reconsume_times == 0 else None

        async with consumer, Producer("PID", b.namesrv) as producer:
            with pytest.raises(BadSettings, match=r"this consumer has started; use `await consumer\.handle"):
                consumer.on("late")
            await producer.send(Message("orders", b"o", tags="paid"))
            await producer.send(Message("orders", b"filtered out", tags="open"))
            await producer.send(Message("refunds", b"r"))
            await producer.send(Message("others", b"x"))
            consumer._rebalance.wake()  # two of the topics are new
            await orders.until_count(1)
            await refunds.until_count(2)  # a retry goes to the handler of its topic
            await others.until_count(1)
            late = Gathered()
            await producer.send(Message("late", b"l"))
            await consumer.handle("late", late)
            await late.until_count(1)
        assert (orders.bodies, refunds.bodies, others.bodies) == ([b"o"], [b"r", b"r"], [b"x"])

    run(main())


def test_plain_code_decorates_handlers_of_a_running_consumer(b: LocalBroker) -> None:
    arrived = threading.Event()
    with sync.PushConsumer("CID", namesrv=b.namesrv) as consumer, sync.Producer("PID", b.namesrv) as producer:

        @consumer.on("orders")
        def handle(received: ReceivedMessage) -> None:
            arrived.set()

        producer.send(Message("orders", b"x"))
        assert arrived.wait(SOON_S)


# -- until a signal --------------------------------------------------------------------------------------------------

ASYNCHRONOUS = """
import asyncio, sys
from penstock.client import PushConsumer

consumer = PushConsumer("CID", namesrv=sys.argv[1])

@consumer.on("orders")
async def handle(message):
    print("began", flush=True)
    await asyncio.sleep(0.5)
    print("finished", flush=True)

asyncio.run(consumer.run())
print("closed")
"""
ON_UVLOOP = ASYNCHRONOUS.replace(
    "asyncio.run(consumer.run())",
    "import uvloop; asyncio.Runner(loop_factory=uvloop.new_event_loop).run(consumer.run())",
)
PLAIN = """
import sys, time
from penstock.client.sync import PushConsumer

def handle(message):
    print("began", flush=True)
    time.sleep(0.5)
    print("finished", flush=True)

PushConsumer("CID", handle, sys.argv[1], subscriptions={"orders": "*"}).run()
print("closed")
"""
AT_ANOTHER_THREAD = PLAIN.replace(
    "    time.sleep(0.5)",
    "    import signal, threading; signal.pthread_kill(threading.get_ident(), signal.SIGINT)",
)


@pytest.mark.parametrize(
    ("program", "number"),
    [(ASYNCHRONOUS, signal.SIGTERM), (ON_UVLOOP, signal.SIGINT), (PLAIN, signal.SIGTERM), (PLAIN, signal.SIGINT)],
    ids=["asyncio", "uvloop", "plain, SIGTERM", "plain, SIGINT"],
)
def test_a_consumer_runs_until_a_signal_and_finishes_what_it_began(
    b: LocalBroker, tmp_path: Path, program: str, number: signal.Signals
) -> None:
    with sync.Producer("PID", b.namesrv) as producer:
        producer.send(Message("orders", b"x"))
    worker = tmp_path / "worker.py"
    worker.write_text(program)
    with subprocess.Popen([sys.executable, str(worker), b.namesrv], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert rest == "finished\nclosed\n"
    assert process.returncode == 0


def test_a_signal_that_does_not_interrupt_the_wait_ends_a_consumer_all_the_same(b: LocalBroker, tmp_path: Path) -> None:
    """As one that arrives just before the wait: Python handles it in the main thread, and only when that runs."""
    with sync.Producer("PID", b.namesrv) as producer:
        producer.send(Message("orders", b"x"))
    worker = tmp_path / "worker.py"
    worker.write_text(AT_ANOTHER_THREAD)
    ran = subprocess.run([sys.executable, worker, b.namesrv], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "began\nfinished\nclosed\n"


def test_a_consumer_that_runs_ends_when_it_is_closed(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        consumer = PushConsumer("CID", Gathered(), b.namesrv, subscriptions=ORDERS)
        before = signal.getsignal(signal.SIGTERM)
        task = asyncio.create_task(consumer.run())
        await until_true(lambda: bool(consumer.assigned))
        assert signal.getsignal(signal.SIGTERM) is not before
        await consumer.close()
        await asyncio.wait_for(task, SOON_S)
        assert signal.getsignal(signal.SIGTERM) is before

    run(main())


# -- bodies, outcomes, turns and the log -----------------------------------------------------------------------------


def test_a_body_is_text_or_json_where_it_is() -> None:
    def received(body: bytes) -> ReceivedMessage:
        return ReceivedMessage(Record("T", body=body), "a")

    assert received("zwölf".encode()).text == "zwölf"
    assert received(b'{"order": 7}').json() == {"order": 7}
    with pytest.raises(BadMessage, match="is not text in UTF-8; use `body`"):
        received(b"\xff").text  # noqa: B018
    for body in (b"{", b"", b"\xff"):
        with pytest.raises(BadMessage, match="is not JSON"):
            received(body).json()


@pytest.mark.parametrize("level", [-1, 19])
def test_later_needs_a_delay_level_that_exists(level: int) -> None:
    with pytest.raises(BadMessage, match="there is no delay level"):
        Later(level)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"max_reconsume_times": -1}])
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        PushOptions(**options)


def test_queues_take_turns(run: Run) -> None:
    async def main() -> None:
        waiting = FairQueues()
        queues = [ProcessQueue(MessageQueue(broker_name="a", queue_id=number, topic="T"), 0) for number in range(3)]
        waiting.put(queues[0], [message(offset) for offset in range(1000)])
        waiting.put(queues[1], [message(0), message(1)])
        waiting.put(queues[2], [message(0)])
        turns = []
        for _ in range(6):
            taken = await waiting.take()
            assert taken is not None
            turns.append(queues.index(taken[0]))
        assert turns == [0, 1, 2, 0, 1, 0]
        queues[0].drop()
        waiting.put(queues[1], [message(2)])
        taken = await waiting.take()
        assert taken is not None
        assert taken[0] is queues[1], "a queue that was dropped has no turn"
        waiter = asyncio.create_task(waiting.take())
        await asyncio.sleep(0)
        waiting.close()
        assert await waiter is None

    run(main())


def test_a_failed_delivery_is_one_line_with_its_attempt_and_what_comes_next(
    run: Run, b: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(received: ReceivedMessage) -> DeadLetter | None:
        if received.reconsume_times < 2:
            raise ValueError("not\ntoday")
        return DeadLetter("it is too old")

    async def main() -> None:
        gathered = Gathered(fail)
        options = PushOptions(max_reconsume_times=5)
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            await send(b, b"bad")
            await gathered.until_count(3)
            await until_true(lambda: len(lines()) == 3)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "not consumed" in record.getMessage()]

    run(main())
    first, second, third = lines()
    assert "not consumed at attempt 1 of 6: ValueError: not today at test_user_handlers.py:" in first
    assert first.endswith("; again at delay level 3 (usually 10 s)")
    assert "at attempt 2 of 6" in second
    assert second.endswith("; again at delay level 4 (usually 30 s)")
    assert third.endswith("at attempt 3 of 6: it is too old; it becomes a dead letter of group CID")
    assert all(record.exc_info is None for record in caplog.records if "not consumed" in record.getMessage())


@pytest.mark.parametrize("outcome", [Later(), DeadLetter()])
def test_an_ordered_broadcast_consumer_skips_what_fails_for_good(
    run: Run, b: LocalBroker, caplog: pytest.LogCaptureFixture, outcome: Later | DeadLetter
) -> None:
    async def main() -> None:
        gathered = Gathered(lambda each: outcome if each.body == b"bad" else None)
        options = PushOptions(ordered=True, broadcast=True, max_reconsume_times=2, suspend_s=0.01, consume_from="first")
        async with Producer("PID", b.namesrv) as producer:
            await producer.send_batch([Message("orders", b"bad"), Message("orders", b"good")])
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            await gathered.until_has({b"good"})
        assert gathered.bodies == [b"bad"] * (1 if isinstance(outcome, DeadLetter) else 3) + [b"good"]
        assert any(record.getMessage().endswith("; it is skipped") for record in caplog.records)

    run(main())


# -- several messages before the outcomes are recorded ---------------------------------------------------------------


def test_messages_do_not_wait_behind_one_whose_handler_waits(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        bodies = {b"%d" % number for number in range(60)}
        await send(b, b"slow", *bodies)
        done: set[bytes] = set()
        go_on = asyncio.Event()

        async def handle(received: ReceivedMessage) -> None:
            if received.body == b"slow":
                await go_on.wait()
            done.add(received.body)

        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=FIRST):
            await until_true(lambda: done == bodies)
            go_on.set()
            await until_true(lambda: b"slow" in done)

    run(main())


def test_messages_do_not_wait_behind_one_whose_thread_is_busy(run: Run, b: LocalBroker) -> None:
    go_on = threading.Event()
    done: list[bytes] = []

    def handle(received: ReceivedMessage) -> None:
        if received.body == b"slow":
            go_on.wait(SOON_S)
        done.append(received.body)

    async def main() -> None:
        bodies = {b"%d" % number for number in range(300)}
        await send(b, b"slow", *bodies)
        options = PushOptions(consume_from="first", max_in_flight=2)  # so that a thread gets many at a time
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await until_true(lambda: set(done) == bodies)
            go_on.set()
            await until_true(lambda: b"slow" in done)
        assert len(done) == 301

    run(main())


def test_of_several_messages_in_a_thread_each_has_its_own_outcome(run: Run, b: LocalBroker) -> None:
    tries: Counter[bytes] = Counter()
    lock = threading.Lock()

    def handle(received: ReceivedMessage) -> Later | None:
        with lock:
            tries[received.body] += 1
        if received.reconsume_times:
            return None
        if int(received.body) % 7 == 3:
            raise ValueError("not today")
        return Later(1) if int(received.body) % 7 == 5 else None

    async def main() -> None:
        bodies = [b"%d" % number for number in range(140)]
        await send(b, *bodies)
        options = PushOptions(consume_from="first", max_in_flight=2)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await until_true(lambda: tries.total() == 180)
        assert tries == {body: 2 if int(body) % 7 in (3, 5) else 1 for body in bodies}

    run(main())


def test_a_thread_that_takes_too_long_fails_its_own_message_only(run: Run) -> None:
    go_on = threading.Event()
    called: list[bytes] = []

    def handle(received: ReceivedMessage) -> None:
        called.append(received.body)
        if received.body == b"1":
            go_on.wait(SOON_S)

    async def main() -> None:
        runner = HandlerRunner(handle, 1, 1.0)
        assert runner.limit("T", 10) == 10
        messages = [ReceivedMessage(Record("T", body=b"%d" % number), "a") for number in range(10)]
        given_back: list[ReceivedMessage] = []
        outcomes = await runner.run(messages, given_back.extend)
        go_on.set()
        assert [type(outcome) for outcome in outcomes] == [type(None), Later]
        assert given_back == messages[2:]
        assert called == [b"0", b"1"]
        runner.close()

    run(main())


def test_one_timer_cancels_each_call_that_is_late_and_no_other(run: Run) -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def handle(received: ReceivedMessage) -> None:
            if received.body == b"late":
                began.set()
                await asyncio.Event().wait()
            await asyncio.sleep(0)

        runner = HandlerRunner(handle, 1, 0.3)
        late = [asyncio.create_task(runner.run([ReceivedMessage(Record("T", body=b"late"), "a")])) for _ in range(3)]
        await began.wait()
        for _ in range(20):
            assert await runner.run([ReceivedMessage(Record("T", body=b"quick"), "a")]) == [None]
        outcomes = [(await task)[0] for task in late]
        assert [str(getattr(outcome, "reason", "")) for outcome in outcomes] == [
            "the handler took longer than 0.3 s, or raised TimeoutError"
        ] * 3
        cancelled = asyncio.create_task(runner.run([ReceivedMessage(Record("T", body=b"late"), "a")]))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        runner.close()

    run(main())


# -- handlers that end in odd ways -----------------------------------------------------------------------------------


async def cancelled_at_once(received: ReceivedMessage) -> None:
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gone.cancel()
    await gone


async def cancelled_later(received: ReceivedMessage) -> None:
    await asyncio.sleep(0)
    await cancelled_at_once(received)


def cancelled_in_a_thread(received: ReceivedMessage) -> None:
    raise asyncio.CancelledError


def exits_in_a_thread(received: ReceivedMessage) -> None:
    sys.exit(3)


@pytest.mark.parametrize("handler", [cancelled_at_once, cancelled_later, cancelled_in_a_thread, exits_in_a_thread])
@pytest.mark.parametrize("count", [1, 3])
def test_a_handler_that_ends_in_an_odd_way_has_failed(run: Run, handler: Any, count: int) -> None:
    async def main() -> None:
        runner = HandlerRunner(handler, 1, 10)
        messages = [message(offset) for offset in range(count)]
        left: list[ReceivedMessage] = []
        outcomes = await runner.run(messages, left.extend)
        assert outcomes
        assert all(isinstance(outcome, Later) for outcome in outcomes)
        assert len(outcomes) + len(left) == count
        runner.close()

    run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_consumption_goes_on_after_a_handler_waited_for_something_that_was_cancelled(
    run: Run, b: LocalBroker, ordered: bool
) -> None:
    async def main() -> None:
        bodies = {b"%d" % number for number in range(8)}
        consumed: list[bytes] = []
        failed: set[bytes] = set()

        async def handle(received: ReceivedMessage) -> None:
            if received.body not in failed:
                failed.add(received.body)
                await cancelled_later(received)
            consumed.append(received.body)

        await send(b, *bodies)
        options = PushOptions(consume_from="first", ordered=ordered, max_in_flight=2, suspend_s=0.01)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await until_true(lambda: set(consumed) == bodies)

    run(main())


def test_run_and_close_both_wait_for_the_running_handler(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def handle(received: ReceivedMessage) -> None:
            began.set()
            await may_end.wait()

        await send(b, b"x")
        options = PushOptions(consume_from="first", close_timeout_s=SOON_S)
        consumer = PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options)
        running = asyncio.create_task(consumer.run())
        await began.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.wait([running, closing], timeout=0.1)
        assert not running.done()
        may_end.set()
        await running
        await closing
        again = Gathered()
        async with PushConsumer("CID", again, b.namesrv, subscriptions=ORDERS, options=FIRST):
            await send(b, b"y")
            await again.until_has({b"y"})
        assert b"x" not in again.bodies

    run(main())
