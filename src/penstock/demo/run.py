"""Runs the demo's steps in order and writes the report, a self-contained HTML page with their results and charts.

If a step fails, the remaining steps are not run, and the report is still written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
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
from penstock.pipeline.svg_charts import document, lines, table

_BUCKETS: Final = 120


def page(scene: Scene, steps: Sequence[StepResult], seconds: float) -> str:
    """Returns the report as HTML."""
    failed = [step for step in steps if step.state is StepState.FAILED]
    return document(
        "Penstock demo",
        [
            f"<h1>Penstock {escape(__version__)}: the broker was killed, and no acknowledged message was lost</h1>"
            if not failed
            else f"<h1>Penstock {escape(__version__)}: the demo failed</h1>",
            f"<p>{escape(verdict(steps))}. {2 * scene.orders:,} or more messages in {seconds:.1f} s.</p>",
            _steps(steps),
            lines("Messages over time (grey: broker down)", _over_time(scene), scene.outages),
            _streamed(scene),
            *_usage(scene),
        ],
    )


def _steps(steps: Sequence[StepResult]) -> str:
    rows = [(step.title, step.state.value, f"{step.seconds:.1f} s", step.summary) for step in steps]
    return table(("step", "", "time", "result"), rows, right=("time",))


def _over_time(scene: Scene) -> dict[str, list[tuple[float, float]]]:
    """Returns the running count of each kind of event, as points of (seconds since the start, count)."""
    times = {name: sorted(each) for name, each in scene.ledger.times.items() if each}
    return {name: _thinned([(at, number) for number, at in enumerate(each, 1)]) for name, each in times.items()}


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    every = max(len(points) // _BUCKETS, 1)
    return [(points[0][0], 0.0), *points[::every], points[-1]]


def _streamed(scene: Scene) -> str:
    if not scene.streamed:
        return ""
    counted = table(("topic", "tag", "messages"), scene.streamed, right=("messages",))
    return f"<h2>Messages in the table of the streaming query</h2>{counted}"


def _usage(scene: Scene) -> list[str]:
    if scene.usage is None:
        return []
    from penstock.pipeline.jobs.usage import charts, disks

    return ["<h2>Disk usage</h2>", disks(scene.usage), *charts(scene.usage)]


ORDERS = 2000
_SKIP_SPARK = ", or run `penstock demo --without-spark`"


class DemoResult(msgspec.Struct, frozen=True):
    """The results of all steps that were run."""

    steps: list[StepResult]
    seconds: float
    report: Path

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(step.state is not StepState.FAILED for step in self.steps)

    @property
    def verdict(self) -> str:
        """The result in words, with the number of skipped steps."""
        return verdict(self.steps)


class Watcher(Protocol):
    """Receives the demo's progress."""

    def begin(self, title: str, number: int, of: int) -> None:
        """Called when a step starts. It is step `number` of `of` steps."""

    def progress(self, phase: str, done: int, total: int) -> None:
        """Called with the progress within the current step."""

    def end(self, step: StepResult) -> None:
        """Called when a step has ended."""


def run(folder: Path, report: Path, watcher: Watcher, *, with_spark: bool, orders: int = ORDERS) -> DemoResult:
    """Runs the demo in `folder`, an existing and empty directory. A failed step does not raise; see `DemoResult.ok`."""
    started = time.monotonic()
    done: list[StepResult] = []
    with log_clients_to(folder / "clients.log"), ExitStack() as opened:
        scene = Scene(folder, orders, BrokerProcess(folder / "store", folder / "broker.log"), opened, watcher.progress)
        for step in _run_steps(scene, _plan(with_spark), watcher):
            done.append(step)
            watcher.end(step)
    result = DemoResult(done, time.monotonic() - started, report)
    report.write_text(page(scene, done, result.seconds), encoding="utf-8")
    return result


@contextmanager
def log_clients_to(path: Path) -> Iterator[None]:
    """Redirects the clients' logs to a file, because errors about a killed broker are expected."""
    log = logging.getLogger("penstock.client")
    handler, propagate = logging.FileHandler(path, encoding="utf-8"), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = propagate
        log.removeHandler(handler)
        handler.close()


def _plan(with_spark: bool) -> Sequence[Step]:
    if not with_spark:
        return (*steps.FIRST, steps.STOP, *steps.LAST)
    from penstock.demo import spark_steps

    return (*steps.FIRST, spark_steps.STREAM, steps.STOP, *spark_steps.LAST)


def _run_steps(scene: Scene, plan: Sequence[Step], watcher: Watcher) -> Iterator[StepResult]:
    for number, step in enumerate(plan, 1):
        watcher.begin(step.title, number, len(plan))
        scene.figures = {}
        started = time.monotonic()
        state, summary = _run_step(step, scene)
        yield StepResult(step.name, step.title, state, time.monotonic() - started, summary, scene.figures)
        if state is StepState.FAILED:
            return


def _run_step(step: Step, scene: Scene) -> tuple[StepState, str]:
    """Runs one step. Returns its state, and its summary or the reason why it failed or was skipped."""
    try:
        return StepState.OK, step.run(scene)
    except StepSkipped as skipped:
        return StepState.SKIPPED, str(skipped)
    except MissingPackage as missing:
        return StepState.FAILED, f"{missing}{_SKIP_SPARK}"
    except (StepFailed, PenstockError, OSError) as failed:
        return StepState.FAILED, str(failed)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        return StepState.FAILED, f"Spark: {str(error).strip().splitlines()[0]}"
