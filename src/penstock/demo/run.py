"""Runs the steps of the demo one after the other, and writes the page at the end, also when one of them failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.demo import steps
from penstock.demo.broker_process import BrokerProcess
from penstock.demo.report import page
from penstock.demo.scene import Done, Scene, State, StepFailed, StepSkipped, verdict
from penstock.demo.steps import Step
from penstock.errors import MissingPackage, PenstockError

ORDERS = 2000
_DO_WITHOUT = ", or run `penstock demo --without-spark`"


class Outcome(msgspec.Struct, frozen=True):
    """What came of all steps; those after one that failed were not begun."""

    steps: list[Done]
    seconds: float
    report: Path

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(step.state is not State.FAILED for step in self.steps)

    @property
    def verdict(self) -> str:
        """The same in words, and what was left out."""
        return verdict(self.steps)


class Watcher(Protocol):
    """Is told how far the demo is."""

    def begin(self, title: str, number: int, of: int) -> None:
        """A step begins."""

    def tell(self, what: str, done: int, total: int) -> None:
        """How far the step is."""

    def end(self, step: Done) -> None:
        """A step is over."""


def run(folder: Path, report: Path, watcher: Watcher, *, with_spark: bool, orders: int = ORDERS) -> Outcome:
    """Plays the demo in a folder that is there and empty. Raises nothing for a step that fails: the outcome says it."""
    begun = time.monotonic()
    done: list[Done] = []
    with _log_in(folder / "clients.log"), ExitStack() as opened:
        scene = Scene(folder, orders, BrokerProcess(folder / "store", folder / "broker.log"), opened, watcher.tell)
        for step in _play(scene, _plan(with_spark), watcher):
            done.append(step)
            watcher.end(step)
    outcome = Outcome(done, time.monotonic() - begun, report)
    report.write_text(page(scene, done, outcome.seconds), encoding="utf-8")
    return outcome


@contextmanager
def _log_in(path: Path) -> Iterator[None]:
    """What clients log goes into a file: that a broker which was killed cannot be reached is no news here."""
    log = logging.getLogger("penstock.client")
    handler, before = logging.FileHandler(path, encoding="utf-8"), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = before
        log.removeHandler(handler)
        handler.close()


def _plan(with_spark: bool) -> Sequence[Step]:
    if not with_spark:
        return (*steps.FIRST, steps.STOP, *steps.LAST)
    from penstock.demo import spark_steps

    return (*steps.FIRST, spark_steps.STREAM, steps.STOP, *spark_steps.LAST)


def _play(scene: Scene, plan: Sequence[Step], watcher: Watcher) -> Iterator[Done]:
    for number, step in enumerate(plan, 1):
        watcher.begin(step.title, number, len(plan))
        scene.figures = {}
        begun = time.monotonic()
        state, says = _outcome(step.act, scene)
        yield Done(step.name, step.title, state, time.monotonic() - begun, says, scene.figures)
        if state is State.FAILED:
            return


def _outcome(act: Callable[[Scene], str], scene: Scene) -> tuple[State, str]:
    try:
        return State.OK, act(scene)
    except StepSkipped as skipped:
        return State.SKIPPED, str(skipped)
    except MissingPackage as lacks:
        return State.FAILED, f"{lacks}{_DO_WITHOUT}"
    except (StepFailed, PenstockError, OSError) as failed:
        return State.FAILED, str(failed)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        return State.FAILED, f"Spark: {str(error).strip().splitlines()[0]}"
