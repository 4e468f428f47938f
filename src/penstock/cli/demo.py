"""`penstock demo`: the whole of it in two minutes, with a broker that is killed."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import progress as bars
from rich.console import Console

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, option
from penstock.cli.output import flush, plain, say, write, write_json
from penstock.errors import BadStore, MissingPackage

if TYPE_CHECKING:
    from penstock.demo import DemoResult, StepResult

REPORT: Final = "penstock-demo.html"
_MARKS: Final = {"ok": "ok", "failed": "FAILED", "skipped": "skipped"}


def demo(
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Leave out what needs Spark, and Java with it.")
    ] = False,
    keep: Annotated[Path | None, option("--keep", "DIR", "Play in this folder, and keep store and report.")] = None,
    as_json: AsJson = False,
) -> None:
    """Kill a broker while a shop sells, and prove that nothing was lost.

    Starts a broker on a fresh store, on free ports of this machine; sells orders through RocketMQ's protocol; kills the
    broker; has it recover; counts every acknowledged message by its unique key; then a query by key, a streaming query
    on Spark, verify and usage. Leaves one page with charts: penstock-demo.html here, or report.html in the folder that
    is kept. Exit status 0: every step checked out; 1: one did not; 2: it could not be run.

    Examples:

    \b
      penstock demo
      penstock demo --without-spark
      penstock demo --keep data/demo --json
    """
    from penstock.demo import run as play

    if not without_spark and find_spec("pyspark") is None:
        raise MissingPackage(
            "the demo's last steps need the package pyspark: pip install 'penstock[spark]', or leave them out with "
            "`penstock demo --without-spark`"
        )
    with _place(keep) as folder:
        report = Path(REPORT) if keep is None else folder / "report.html"
        with _Screen(quiet=as_json) as screen:
            outcome = play(folder, report, screen, with_spark=not without_spark)
        if as_json:
            write_json(_document(outcome, keep))
        else:
            _farewell(outcome, keep, without_spark=without_spark)
        if not outcome.ok:
            _keep_the_log(folder, keep)
    if not outcome.ok:
        raise typer.Exit(exit_codes.PROBLEM)


@contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as made:
            yield Path(made)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadStore("the demo makes a new store; name a folder that is empty or not there yet", path=keep)
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


class _Screen:
    """A line for each step that is over, on stdout; what is being done meanwhile moves on stderr, for a person."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=24),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._all = self._bar.add_task("steps", total=1)
        self._now = self._bar.add_task("")

    def __enter__(self) -> _Screen:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, title: str, number: int, of: int) -> None:
        self._bar.update(self._all, completed=number - 1, total=of)
        self._bar.reset(self._now, description=title, total=None)

    def tell(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._now, description=what, completed=done, total=total)

    def end(self, step: StepResult) -> None:
        if not self._quiet:
            write(f"{_MARKS[step.state]:7} {step.seconds:5.1f} s  {step.title}\n{'':17}{plain(step.says)}\n")
            flush()


def _document(outcome: DemoResult, keep: Path | None) -> dict[str, object]:
    return {
        "ok": outcome.ok,
        "seconds": round(outcome.seconds, 3),
        "report": str(outcome.report.absolute()),
        "store": None if keep is None else str((keep / "store").absolute()),
        "steps": [
            {
                "name": step.name,
                "title": step.title,
                "state": step.state.value,
                "seconds": round(step.seconds, 3),
                "says": step.says,
                "figures": step.figures,
            }
            for step in outcome.steps
        ],
    }


def _farewell(outcome: DemoResult, keep: Path | None, *, without_spark: bool) -> None:
    if not outcome.ok:
        write(f"\nThe demo stopped after {outcome.seconds:.0f} s. What was seen until then: {outcome.report}\n")
        return
    write(f"\n{outcome.verdict}, in {outcome.seconds:.0f} s. The page with charts: {outcome.report}\n\nTry next:\n")
    if keep is None:
        again = "penstock demo --without-spark --keep data/demo" if without_spark else "penstock demo --keep data/demo"
        calls = [f"{again}   # keeps the store to play with", "penstock serve", "penstock --help"]
    else:
        store = shlex.quote(str(keep / "store"))
        calls = [
            f"penstock store info {store}",
            f"penstock store query {store} --topic orders --key order_7",
            f"penstock store usage {store} --by tag",
            f"penstock pipeline search --store {store} --text shoes --limit 5",
            f"penstock serve --profile dev --store {store}",
        ]
    write("".join(f"  {call}\n" for call in calls))


def _keep_the_log(folder: Path, keep: Path | None) -> None:
    """Says where the broker's log is, or what its last words were if it goes with the folder."""
    log = folder / "broker.log"
    if keep is not None:
        say(f"the broker's log is in {log}.")
    elif log.exists() and (lines := log.read_text(encoding="utf-8", errors="replace").splitlines()):
        say(f"the broker's last words: {lines[-1]}")
