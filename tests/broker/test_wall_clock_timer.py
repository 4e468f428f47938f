"""Calls at a time of the wall clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.broker import wall_clock_timer as scheduling
from penstock.broker.wall_clock_timer import Scheduler

if TYPE_CHECKING:
    from broker.conftest import Run


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture(autouse=True)
def short_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_LONGEST_SLEEP_S", 0.001)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.001)


async def looks(clock: SetClock, scheduler: Scheduler, count: int = 3) -> None:
    """Waits until the scheduler has read the clock so many times."""
    seen: list[int] = []
    for _ in range(count):
        scheduler.call_at(clock.ms, lambda: seen.append(1))
        expected = len(seen) + 1
        await until(lambda expected=expected: len(seen) >= expected)  # type: ignore[misc]


def test_calls_are_made_in_the_order_of_their_times_and_never_early(run: Run) -> None:
    async def check() -> None:
        clock, made = SetClock(), list[str]()
        scheduler = Scheduler(clock)
        for due, name in ((30, "c"), (10, "a"), (20, "b"), (10, "a again"), (40, "d")):
            scheduler.call_at(clock.ms + due, lambda name=name: made.append(name))  # type: ignore[misc]
        await looks(clock, scheduler)
        assert made == []
        clock.ms += 30
        await until(lambda: len(made) >= 4)
        await looks(clock, scheduler)
        assert made == ["a", "a again", "b", "c"]
        assert len(scheduler) == 1
        scheduler.stop()

    run(check())


def test_a_call_in_the_past_is_made_in_a_later_turn(run: Run) -> None:
    async def check() -> None:
        made = list[int]()
        scheduler = Scheduler(SetClock())
        scheduler.call_at(0, lambda: made.append(1))
        assert made == []
        await until(lambda: made == [1])

    run(check())


def test_a_call_that_raises_keeps_no_other_from_being_made(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        made = list[int]()
        scheduler = Scheduler(SetClock())
        scheduler.call_at(0, lambda: 1 // 0)
        scheduler.call_at(0, lambda: made.append(1))
        await until(lambda: made == [1])
        scheduler.call_at(0, lambda: made.append(2))
        await until(lambda: made == [1, 2])

    run(check())
    assert "ZeroDivisionError" in caplog.text


def test_a_cancelled_call_is_not_made_even_by_one_of_the_same_ms(run: Run) -> None:
    async def check() -> None:
        clock, made = SetClock(), list[int]()
        scheduler = Scheduler(clock)
        scheduler.call_at(clock.ms, lambda: second.cancel())
        second = scheduler.call_at(clock.ms, lambda: made.append(2))
        scheduler.call_at(clock.ms, lambda: made.append(3))
        await until(lambda: 3 in made)
        assert made == [3]

    run(check())


def test_a_call_that_schedules_itself_lets_the_loop_go_on(run: Run) -> None:
    async def check() -> None:
        clock, made = SetClock(), list[int]()
        scheduler = Scheduler(clock)

        def again() -> None:
            made.append(1)
            scheduler.call_at(clock.ms, again)

        again()
        await until(lambda: len(made) > 3)
        scheduler.stop()
        count = len(made)
        await asyncio.sleep(0.005)
        assert len(made) == count

    run(check())


def test_a_clock_that_is_set_forward_is_noticed(run: Run) -> None:
    async def check() -> None:
        clock, made = SetClock(), list[int]()
        scheduler = Scheduler(clock)
        scheduler.call_at(clock.ms + 3_600_000, lambda: made.append(1))
        await asyncio.sleep(0.005)
        clock.ms += 3_600_000
        await until(lambda: made == [1])

    run(check())


def test_a_clock_that_is_set_back_is_reported_and_calls_wait_for_their_time(run: Run) -> None:
    async def check() -> None:
        clock, made, reports = SetClock(), list[int](), list[int]()
        scheduler = Scheduler(clock)
        scheduler.on_set_back.append(lambda: reports.append(1))
        due = clock.ms + 1000
        scheduler.call_at(due, lambda: made.append(1))
        clock.ms -= 3_600_000
        await until(lambda: reports != [])
        await looks(clock, scheduler)
        assert made == []
        clock.ms = due
        await until(lambda: made == [1])

    run(check())
