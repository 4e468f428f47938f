"""Whatever ends a background task, its supervisor notices, says why, and restarts it or has the server leave."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from support.loopback import serving, small_limits, until

from penstock import task_supervision
from penstock.errors import PenstockError
from penstock.remoting.limits import ServerConnections
from penstock.task_supervision import OnDeath, Supervisor

if TYPE_CHECKING:
    from remoting.conftest import Run

LOGGER = logging.getLogger("penstock.tests")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_supervision, "FIRST_PAUSE_S", 0.001)


class Flaky:
    """Fails as often as it is told, with what it is told, then works until it is cancelled."""

    def __init__(self, times: int, error: BaseException) -> None:
        self.left = times
        self.error = error
        self.runs = 0

    def round(self) -> None:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise self.error

    async def run(self) -> None:
        self.round()
        await asyncio.Event().wait()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("error", [MemoryError("planted"), asyncio.CancelledError("planted")], ids=repr)
def test_a_task_that_ends_is_restarted_and_the_log_says_why(
    run: Run, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    async def go() -> None:
        tasks, work = Supervisor(LOGGER), Flaky(3, error)
        tasks.run("work", work.run)
        await until(lambda: work.runs == 4)
        assert tasks.problems == {"work": f"work: {error!r}"}
        tasks.recovered("work")
        assert tasks.problems == {}
        await tasks.stop()

    with caplog.at_level(logging.INFO):
        run(go())
    assert lines(caplog) == [f"work: {error!r}; retrying", "work: works again"], "the same error is said once"
    assert caplog.records[0].exc_info


def test_a_round_that_fails_is_followed_by_the_next(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        tasks, work = Supervisor(LOGGER), Flaky(2, PenstockError("the peer is away"))
        tasks.every(0.001, "work", work.round)
        await until(lambda: tasks.problems)
        await until(lambda: not tasks.problems)
        assert work.runs == 3
        await tasks.stop()

    with caplog.at_level(logging.INFO):
        run(go())
    assert lines(caplog) == ["work: the peer is away; retrying", "work: works again"]
    assert not caplog.records[0].exc_info, "an expected error is one line"


def test_rounds_may_be_coroutines_at_intervals_that_change(run: Run) -> None:
    async def go() -> None:
        tasks, intervals = Supervisor(LOGGER), iter([0.001, 0.002, 0.0])
        done: list[float] = []

        async def work() -> None:
            await asyncio.sleep(0)
            done.append(1)

        tasks.every(lambda: next(intervals, 3600.0), "work", work)
        await until(lambda: len(done) == 3)
        await tasks.stop()

    run(go())


def test_a_failure_that_does_not_repeat_is_forgotten(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        tasks, work = Supervisor(LOGGER), Flaky(1, ValueError("planted"))
        tasks.run("work", work.run)
        await until(lambda: work.runs == 2)  # it may be forgotten by now, on a busy machine
        await until(lambda: not tasks.problems)
        await tasks.stop()
        assert lines(caplog) == ["work: ValueError('planted'); retrying"]

    monkeypatch.setattr(task_supervision, "FORGET_S", 0.05)
    run(go())


def test_what_a_server_cannot_do_without_makes_it_leave_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        tasks, left, work = Supervisor(LOGGER), [], Flaky(9, MemoryError("planted"))
        tasks.on_leave.append(lambda: left.append(1))
        tasks.run("work", work.run, OnDeath.LEAVE)
        asyncio.get_running_loop().call_soon(tasks.guard("timer", work.round, OnDeath.LEAVE))
        await until(lambda: len(tasks.problems) == 2)
        assert (left, tasks.has_left, work.runs) == ([1], True, 2)
        await tasks.stop()

    run(go())
    assert len([record for record in caplog.records if record.levelno == logging.CRITICAL]) == 1


def test_a_callback_of_the_loop_that_fails_is_noticed(run: Run) -> None:
    async def go() -> None:
        tasks, loop = Supervisor(LOGGER), asyncio.get_running_loop()
        seen: list[object] = []
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
        tasks.watch_loop()
        loop.call_soon(Flaky(1, MemoryError("planted")).round)
        await until(lambda: seen)
        assert tasks.problems == {"event loop": "event loop: MemoryError('planted')"}
        await tasks.stop()
        loop.call_soon(Flaky(1, OSError("not watched any more")).round)
        await until(lambda: len(seen) == 2)
        assert len(tasks.problems) == 1
        loop.set_exception_handler(before)

    run(go())


def test_one_task_of_a_name_at_a_time_and_none_after_the_end(run: Run) -> None:
    async def go() -> None:
        tasks, first, second = Supervisor(LOGGER), Flaky(0, ValueError()), Flaky(0, ValueError())
        tasks.run("work", first.run)
        tasks.run("work", second.run)
        await until(lambda: first.runs)
        await tasks.end("work")
        tasks.run("work", second.run)
        await until(lambda: second.runs)
        await tasks.stop()
        tasks.run("work", second.run)
        await asyncio.sleep(0)
        assert (first.runs, second.runs) == (1, 1)

    run(go())


def test_a_sweep_that_fails_is_not_the_last(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep closes idle connections: without it, a server fills up."""
    sweeps = Flaky(1, MemoryError("planted"))
    monkeypatch.setattr(ServerConnections, "sweep", lambda self, now: sweeps.round())

    async def go() -> None:
        tasks = Supervisor(LOGGER)
        async with serving(limits=small_limits(idle_s=0.02), tasks=tasks) as (_, (_, port)):
            await until(lambda: tasks.problems)
            assert list(tasks.problems) == [f"sweep of connections at port {port}"]
            await until(lambda: not tasks.problems)
            assert sweeps.runs >= 2

    run(go())
