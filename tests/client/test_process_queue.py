"""What a consumer has in hand, and what follows from it: how far the group has come, and whether to pull on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import Later, MessageQueue, ReceivedMessage
from penstock.client.assigned_queues import ProcessQueue
from penstock.client.offsets import FileOffsets
from penstock.client.user_handlers import HandlerRunner
from penstock.errors import BadSettings
from penstock.format.record import Record

if TYPE_CHECKING:
    from client.conftest import Run

QUEUE = MessageQueue(broker_name="a", queue_id=0, topic="T")


def message(offset: int, size: int = 100) -> ReceivedMessage:
    return ReceivedMessage(Record("T", queue_offset=offset, size=size), "a")


@given(st.permutations(range(20)), st.integers(0, 20))
def test_the_offset_to_commit_is_the_lowest_that_is_not_done(order: list[int], done: int) -> None:
    held = ProcessQueue(QUEUE, 0)
    messages = [message(offset) for offset in range(20)]
    held.put(messages, 25)  # the last five were not wanted
    for offset in order[:done]:
        held.remove([messages[offset]])
    left = sorted(set(range(20)) - set(order[:done]))
    assert held.commit_offset == (left[0] if left else 25)
    assert (len(held), held.cached_bytes, held.cached_offsets) == (len(left), 100 * len(left), left)


def has_room(held: ProcessQueue) -> bool:
    return held._has_room.is_set()


def test_pulling_stops_where_too_much_is_in_hand_and_goes_on_when_it_is_done() -> None:
    held = ProcessQueue(QUEUE, 0)
    messages = [message(offset) for offset in range(1000)]
    held.put(messages[:999], 999)
    assert has_room(held)
    held.put(messages[999:], 1000)
    assert not has_room(held)
    held.remove([messages[5]])
    assert has_room(held)
    large = ProcessQueue(QUEUE, 0)
    large.put([message(0, 101 << 20)], 1)
    assert not has_room(large)
    stuck = ProcessQueue(QUEUE, 0)
    stuck.put([message(0)], 2000)
    assert not has_room(stuck), "one message that is stuck must not let a crash bring thousands again"
    stuck.drop()
    assert has_room(stuck), "a waiter must notice that the queue was dropped"


def test_a_handler_that_is_a_method_a_partial_or_an_object_is_called_where_it_belongs(run: Run) -> None:
    import functools
    import threading

    class Asynchronous:
        async def __call__(self, message: ReceivedMessage) -> None:
            threads.append(threading.current_thread())

    async def handle(prefix: str, message: ReceivedMessage) -> Later:
        threads.append(threading.current_thread())
        return Later(2)

    def plain(message: ReceivedMessage) -> str:
        threads.append(threading.current_thread())
        return "what is this?"

    threads: list[threading.Thread] = []

    async def main() -> None:
        here = threading.current_thread()
        for handler, outcome in ((Asynchronous(), None), (functools.partial(handle, "x"), Later(2)), (plain, None)):
            handling = HandlerRunner(handler, 2, 10)
            assert await handling.run([message(0)]) == [outcome]
            handling.close()
        assert threads[:2] == [here, here]
        assert threads[2] is not here

    run(main())


def test_a_handler_that_is_cancelled_by_closing_is_no_failure(run: Run) -> None:
    async def main() -> None:
        async def wait(message: ReceivedMessage) -> None:
            await asyncio.sleep(60)

        task = asyncio.create_task(HandlerRunner(wait, 1, 100).run([message(0)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_file_of_offsets_is_replaced_whole_and_tried_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "offsets.json"

    async def main() -> None:
        offsets = FileOffsets(path)
        offsets.update(QUEUE, 5)
        (tmp_path / "folder").write_text("in the way")
        await offsets.save()
        (tmp_path / "folder").unlink()
        await offsets.save()
        assert await FileOffsets(path).load(QUEUE) == 5
        path.write_text("{")
        with pytest.raises(BadSettings, match="cannot be read"):
            FileOffsets(path)

    run(main())
