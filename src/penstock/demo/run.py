"""What the demo leaves behind: one page with what each step showed, and charts. It needs nothing but itself.

Runs the steps of the demo one after the other, and writes the page at the end, also when one of them failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from typing import Final, Protocol

import msgspec

from penstock import __version__
from penstock.demo import steps
from penstock.demo.shop import BrokerProcess, Scene, StepFailed, StepResult, StepSkipped, StepState, verdict
from penstock.demo.steps import Step
from penstock.errors import MissingPackage, PenstockError
from penstock.pipeline.charts import document, lines, table

_BUCKETS: Final = 120


def page(scene: Scene, steps: Sequence[StepResult], seconds: float) -> str:
    """The page as HTML."""
    failed = [step for step in steps if step.state is StepState.FAILED]
    return document(
        "Penstock demo",
        [
            f"<h1>Penstock {escape(__version__)}: a broker was killed, and nothing was lost</h1>"
            if not failed
            else f"<h1>Penstock {escape(__version__)}: the demo did not come to its end</h1>",
            f"<p>{escape(verdict(steps))}. It took {seconds:.1f} s, with {2 * scene.orders:,} messages and more.</p>",
            _steps(steps),
            lines("Messages over time, the broker away where it is grey", _over_time(scene), scene.away),
            _streamed(scene),
            *_usage(scene),
        ],
    )


def _steps(steps: Sequence[StepResult]) -> str:
    rows = [(step.title, step.state.value, f"{step.seconds:.1f} s", step.says) for step in steps]
    return table(("step", "", "took", "what was seen"), rows, right=("took",))


def _over_time(scene: Scene) -> dict[str, list[tuple[float, float]]]:
    """How many there were of each kind by when."""
    moments = {name: sorted(some) for name, some in scene.ledger.moments.items() if some}
    return {name: _thinned([(at, number) for number, at in enumerate(some, 1)]) for name, some in moments.items()}


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    every = max(len(points) // _BUCKETS, 1)
    return [(points[0][0], 0.0), *points[::every], points[-1]]


def _streamed(scene: Scene) -> str:
    if not scene.streamed:
        return ""
    counted = table(("topic", "tag", "messages"), scene.streamed, right=("messages",))
    return f"<h2>What the streaming query put into a table</h2>{counted}"


def _usage(scene: Scene) -> list[str]:
    if scene.usage is None:
        return []
    from penstock.pipeline.jobs.usage import charts, disks

    return ["<h2>Who fills the disk</h2>", disks(scene.usage), *charts(scene.usage)]


ORDERS = 2000
_DO_WITHOUT = ", or run `penstock demo --without-spark`"


class DemoResult(msgspec.Struct, frozen=True):
    """What came of all steps; those after one that failed were not begun."""

    steps: list[StepResult]
    seconds: float
    report: Path

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(step.state is not StepState.FAILED for step in self.steps)

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

    def end(self, step: StepResult) -> None:
        """A step is over."""


def run(folder: Path, report: Path, watcher: Watcher, *, with_spark: bool, orders: int = ORDERS) -> DemoResult:
    """Plays the demo in a folder that is there and empty. Raises nothing for a step that fails: the outcome says it."""
    begun = time.monotonic()
    done: list[StepResult] = []
    with _log_in(folder / "clients.log"), ExitStack() as opened:
        scene = Scene(folder, orders, BrokerProcess(folder / "store", folder / "broker.log"), opened, watcher.tell)
        for step in _play(scene, _plan(with_spark), watcher):
            done.append(step)
            watcher.end(step)
    outcome = DemoResult(done, time.monotonic() - begun, report)
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


def _play(scene: Scene, plan: Sequence[Step], watcher: Watcher) -> Iterator[StepResult]:
    for number, step in enumerate(plan, 1):
        watcher.begin(step.title, number, len(plan))
        scene.figures = {}
        begun = time.monotonic()
        state, says = _outcome(step.act, scene)
        yield StepResult(step.name, step.title, state, time.monotonic() - begun, says, scene.figures)
        if state is StepState.FAILED:
            return


def _outcome(act: Callable[[Scene], str], scene: Scene) -> tuple[StepState, str]:
    try:
        return StepState.OK, act(scene)
    except StepSkipped as skipped:
        return StepState.SKIPPED, str(skipped)
    except MissingPackage as lacks:
        return StepState.FAILED, f"{lacks}{_DO_WITHOUT}"
    except (StepFailed, PenstockError, OSError) as failed:
        return StepState.FAILED, str(failed)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        return StepState.FAILED, f"Spark: {str(error).strip().splitlines()[0]}"
