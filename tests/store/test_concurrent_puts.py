"""Many threads put at once: every answer names the record that was stored for it, and no two share anything."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.effort import BY_TWIN, running_on

from penstock.store import FlushDiskType, Message, MessageStore, PutResult, PutStatus, Settings

FILE_SIZE = 16 << 10
THREADS = 6


@pytest.fixture(params=BY_TWIN)
def twin(request: pytest.FixtureRequest) -> Any:
    with running_on(request.param):
        yield request.param


def put_some(store: MessageStore, number: int, count: int) -> list[tuple[Message, PutResult]]:
    """Puts singles and batches, and returns each message with its answer."""
    chance = random.Random(number)
    done: list[tuple[Message, PutResult]] = []
    while len(done) < count:
        messages = [
            Message(
                "orders", b"%d:%d:" % (number, len(done) + place) + bytes(chance.randrange(1500)), queue_id=number % 2
            )
            for place in range(chance.choice((1, 1, 1, 1, 3)))
        ]
        results = store.put_many(messages).results if len(messages) > 1 else (store.put(messages[0]),)
        done += zip(messages, results, strict=True)
    return done


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pre_allocate_files": True},
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {"transient_store_pool_enable": True, "commit_interval_commit_log": 1},
    ],
    ids=["as it is", "with files made ahead", "with synchronous flush", "with the transient pool"],
)
def test_every_answer_names_its_own_record(tmp_path: Path, twin: str, changes: dict[str, Any]) -> None:
    settings = Settings.dev(mapped_file_size_commit_log=FILE_SIZE, **changes)
    with MessageStore.open(tmp_path / "store", settings) as store:
        with ThreadPoolExecutor(THREADS) as threads:
            shares = list(threads.map(lambda number: put_some(store, number, 150), range(THREADS)))
        done = sorted((pair for share in shares for pair in share), key=lambda pair: pair[1].physical_offset)
    with MessageStore.open(tmp_path / "store", settings) as store:
        for message, result in done:
            record = store.look_up_id(result.msg_id)
            assert record is not None
            assert (record.body, record.queue_offset) == (message.body, result.queue_offset)
        for queue_id in (0, 1):
            offsets = [result.queue_offset for _, result in done if result.queue_id == queue_id]
            assert offsets == list(range(len(offsets))), "log order is queue order, without a hole"
            assert store.max_offset("orders", queue_id) == len(offsets)
    ends = [result.end_offset for _, result in done]
    starts = [result.physical_offset for _, result in done]
    assert all(start == end or start % FILE_SIZE == 0 for end, start in zip(ends, starts[1:], strict=False))


def test_an_answer_is_right_if_the_log_rolls_while_it_is_made(tmp_path: Path, twin: str) -> None:
    """The thread that puts also wakes the dispatcher; meanwhile another thread may fill the file."""
    with MessageStore.open(tmp_path / "store", Settings.dev(mapped_file_size_commit_log=FILE_SIZE)) as store:
        appender = store.log.appender
        wake = appender.wake
        rolled = threading.Event()

        def roll_and_wake() -> None:
            if not rolled.is_set():
                rolled.set()
                store.put_many([Message("orders", bytes(7000)) for _ in range(2)])
                store.put_many([Message("orders", bytes(7000)) for _ in range(2)])
            wake()

        answers = [store.put(Message("orders", b"here 0"))]  # the first of a topic takes the long way
        appender.wake = roll_and_wake
        while not rolled.is_set():
            appender.is_follower_asleep = True
            answers.append(store.put(Message("orders", b"here %d" % len(answers))))
        for number, answer in enumerate(answers):
            assert store.look_up(answer.physical_offset).body == b"here %d" % number


def test_puts_that_meet_the_closing_store_are_answered_and_kept_or_refused(tmp_path: Path, twin: str) -> None:
    settings = Settings.dev(mapped_file_size_commit_log=FILE_SIZE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = MessageStore.open(tmp_path / "store", settings)
    begun = threading.Barrier(THREADS + 1)

    def put_until_refused(number: int) -> tuple[list[PutResult], PutResult]:
        answers = [store.put(Message("orders", b"%d" % number))]
        begun.wait()
        while answers[-1].ok:
            answers.append(store.put(Message("orders", b"%d" % number)))
        return answers[:-1], answers[-1]

    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(put_until_refused, number) for number in range(THREADS)]
        begun.wait()
        store.close()
        ended = [future.result() for future in running]
    for _, refused in ended:
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "closed" in refused.reason
    kept = sorted(answer.queue_offset for answers, _ in ended for answer in answers)
    with MessageStore.open(tmp_path / "store", settings) as again:
        assert again.report.clean_exit
        assert kept == list(range(again.max_offset("orders", 0)))
