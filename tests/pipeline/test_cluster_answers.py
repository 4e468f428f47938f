"""Answers that our own broker never gives: damaged records as Java's hand them out, holes, and nonsense."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from support.clients import FakeCluster
from support.messages import make_record
from support.pipeline import access_to, column_of, read_pages

from penstock.errors import DataLost, NoAnswer
from penstock.pipeline.cluster_read_tasks import ClusterTask
from penstock.pipeline.offset_ranges import OffsetRange, Queue, RowPage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pull import PullMessage
from penstock.remoting.connection import Connection

Q = Queue("T", "fake", 0)
Answer = tuple[ResponseCode, int, bytes]
"""Code, next offset, and records."""


def record(number: int, body: bytes = b"body", **fields: object) -> bytes:
    """The message of a queue offset; it lay somewhere in its log."""
    return make_record(100_000 - number * 7, body, queue_offset=number, **fields)  # type: ignore[arg-type]


def damaged(number: int) -> bytes:
    return record(number).replace(b"body", b"b0dy")


def beheaded(number: int) -> bytes:
    return bytes(60) + record(number)[60:]


def pulled(
    answer: Callable[[int, int], Answer],
    stop: int,
    *,
    lowest: int = 0,
    tags: str = "*",
    allowed: bool = False,
    use: Callable[[ClusterTask], list[RowPage]] = read_pages,
) -> list[RowPage]:
    """Reads messages 0 to `stop` from a broker that answers pulls of (offset, most) as it likes."""

    def pull(connection: Connection, command: Command) -> Command:
        header = command.read(PullMessage)
        code, following, body = answer(header.queue_offset, header.max_msg_nums)
        ext = {"suggestWhichBrokerId": "1", "nextBeginOffset": str(following), "minOffset": str(lowest)}
        return command.reply(code, ext={**ext, "maxOffset": str(stop)}, body=body)

    def least(connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, ext={"offset": str(lowest)})

    async def main() -> list[RowPage]:
        handlers = {RequestCode.PULL_MESSAGE: pull, RequestCode.GET_MIN_OFFSET: least}
        async with FakeCluster(handlers).running() as cluster:  # type: ignore[arg-type]
            task = ClusterTask(access_to(cluster.namesrv), (OffsetRange(Q, 0, stop),), tags, not allowed)
            return await asyncio.to_thread(use, task)

    return asyncio.run(main())


def paging(records: list[bytes], page: int = 32) -> Callable[[int, int], Answer]:
    """A broker that gives what it has, whatever it is."""

    def answer(offset: int, most: int) -> Answer:
        some = records[offset : offset + min(most, page)]
        return ResponseCode.SUCCESS, offset + len(some), b"".join(some)

    return answer


def flaws(pages: list[RowPage]) -> list[int | None]:
    return [flaw.queue_offset for page in pages for flaw in page.flaws]


@pytest.mark.parametrize("harm", [damaged, beheaded])
def test_a_damaged_record_costs_only_itself(harm: Callable[[int], bytes]) -> None:
    bad = {0, 40, 41, 63, 99}
    pages = pulled(paging([harm(n) if n in bad else record(n) for n in range(100)]), 100)
    assert column_of(pages, "queue_offset") == [n for n in range(100) if n not in bad]
    assert flaws(pages) == sorted(bad)
    assert pages[0].flaws[0].what.startswith("a record is damaged (")


@pytest.mark.parametrize(
    "other", [record(5, topic="U"), record(5, queue_id=1), record(6), record(4), record(5, topic="TT")]
)
def test_a_record_of_another_message_is_a_flaw(other: bytes) -> None:
    pages = pulled(paging([other if n == 5 else record(n) for n in range(10)]), 10)
    assert column_of(pages, "queue_offset") == [n for n in range(10) if n != 5]
    assert flaws(pages) == [5]


def test_what_a_broker_passes_over_is_a_flaw_or_lost() -> None:
    def answer(offset: int, most: int) -> Answer:
        if offset < 20:
            return ResponseCode.PULL_RETRY_IMMEDIATELY, 20, b""
        if offset < 30:
            return ResponseCode.PULL_NOT_FOUND, 30, b""  # a hole between two queue files
        return ResponseCode.SUCCESS, 40, b"".join(record(n) for n in range(30, 40, 2))

    pages = pulled(answer, 40)
    assert column_of(pages, "queue_offset") == [30, 32, 34, 36, 38]
    assert flaws(pages) == [*range(30), 31, 33, 35, 37, 39]
    assert pulled(answer, 40, tags="paid")[0].flaws == ()
    with pytest.raises(DataLost, match="messages 0 to 24 of topic T queue 0 "):
        pulled(answer, 40, lowest=25)
    assert flaws(pulled(answer, 40, lowest=25, allowed=True)) == [25, 26, 27, 28, 29, 31, 33, 35, 37, 39]


def test_records_beyond_the_range_are_left_to_the_next() -> None:
    """Where a broker filters, it looks further than it was asked for."""
    all_of_them = b"".join(record(n) for n in range(1, 900, 2))
    pages = pulled(lambda offset, most: (ResponseCode.SUCCESS, 900, _from(all_of_them, offset)), 600, tags="paid")
    assert column_of(pages, "queue_offset") == list(range(1, 600, 2))


def _from(records: bytes, offset: int) -> bytes:
    return records[offset // 2 * len(record(0)) :]


def test_a_queue_that_ends_early_is_lost() -> None:
    for code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):

        def answer(offset: int, most: int, code: ResponseCode = code) -> Answer:
            if offset >= 5:
                return code, 5, b""
            return ResponseCode.SUCCESS, 5, b"".join(record(n) for n in range(offset, 5))

        with pytest.raises(DataLost, match="messages 5 to 9 of topic T queue 0 "):
            pulled(answer, 10)
        assert column_of(pulled(answer, 10, allowed=True), "queue_offset") == [0, 1, 2, 3, 4]


def test_an_answer_that_leads_nowhere_ends_the_read() -> None:
    with pytest.raises(NoAnswer, match="it must be larger"):
        pulled(lambda offset, most: (ResponseCode.SUCCESS, offset, record(offset)), 10)


def test_little_is_pulled_ahead_of_a_slow_reader() -> None:
    sent = [0]

    def answer(offset: int, most: int) -> Answer:
        body = record(offset, b"x" * 100_000)
        sent[0] += len(body)
        return ResponseCode.SUCCESS, offset + 1, body

    def first_page(task: ClusterTask) -> list[RowPage]:
        pages = task.pages(["body"])
        found = [next(pages)]
        time.sleep(0.5)  # in which much more could be pulled
        pages.close()  # type: ignore[attr-defined]
        return found

    pages = pulled(answer, 1000, use=first_page)
    assert 8 << 20 <= pages[0].batch.nbytes <= sent[0] <= 14 << 20  # of 100 MB
