"""`penstock demo`: a two-minute demo in which the broker is killed under load."""

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
from penstock.cli.output import flush, plain, write, write_json, write_note
from penstock.errors import BadStore, MissingPackage

if TYPE_CHECKING:
    from penstock.demo import DemoResult, StepResult

REPORT: Final = "penstock-demo.html"
_MARKS: Final = {"ok": "ok", "failed": "FAILED", "skipped": "skipped"}


def demo(
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Skip the steps that need Spark and Java.")
    ] = False,
    keep: Annotated[Path | None, option("--keep", "DIR", "Use this directory, and keep store and report.")] = None,
    as_json: AsJson = False,
) -> None:
    """Two-minute demo: kill a broker, lose nothing.

    Starts a broker on a new store and free ports; sends orders through RocketMQ's protocol; kills and restarts the
    broker; checks every acknowledged message by its unique key; then a query by key, a streaming query on Spark, verify
    and usage. Writes a page with charts: penstock-demo.html, or report.html in the directory of --keep. Exit status 0:
    every step passed; 1: one failed; 2: could not run.

    Examples:

    \b
      penstock demo
      penstock demo --without-spark
      penstock demo --keep data/demo --json
    """
    from penstock.demo import run as run_demo

    if not without_spark and find_spec("pyspark") is None:
        raise MissingPackage(
            "the demo's last steps need the package pyspark: pip install 'penstock[spark]', or skip them with "
            "`penstock demo --without-spark`"
        )
    with _directory(keep) as folder:
        report = Path(REPORT) if keep is None else folder / "report.html"
        with _Screen(quiet=as_json) as screen:
            result = run_demo(folder, report, screen, with_spark=not without_spark)
        if as_json:
            write_json(_document(result, keep))
        else:
            _print_result(result, keep, without_spark=without_spark)
        if not result.ok:
            _note_log(folder, keep)
    if not result.ok:
        raise typer.Exit(exit_codes.PROBLEM)


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
            yield Path(temporary)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadStore("the demo needs an empty directory; name one that is empty or does not exist", path=keep)
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


class _Screen:
    """The demo's output: a line on stdout for each finished step, and progress on stderr if it is a terminal."""

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

    def progress(self, phase: str, done: int, total: int) -> None:
        self._bar.update(self._now, description=phase, completed=done, total=total)

    def end(self, step: StepResult) -> None:
        if not self._quiet:
            write(f"{_MARKS[step.state]:7} {step.seconds:5.1f} s  {step.title}\n{'':17}{plain(step.summary)}\n")
            flush()


def _document(result: DemoResult, keep: Path | None) -> dict[str, object]:
    return {
        "ok": result.ok,
        "seconds": round(result.seconds, 3),
        "report": str(result.report.absolute()),
        "store": None if keep is None else str((keep / "store").absolute()),
        "steps": [
            {
                "name": step.name,
                "title": step.title,
                "state": step.state.value,
                "seconds": round(step.seconds, 3),
                "says": step.summary,
                "figures": step.figures,
            }
            for step in result.steps
        ],
    }


def _print_result(result: DemoResult, keep: Path | None, *, without_spark: bool) -> None:
    if not result.ok:
        write(f"\nThe demo failed after {result.seconds:.0f} s. Report: {result.report}\n")
        return
    write(f"\n{result.verdict}, in {result.seconds:.0f} s. Report with charts: {result.report}\n\nTry next:\n")
    if keep is None:
        again = "penstock demo --without-spark --keep data/demo" if without_spark else "penstock demo --keep data/demo"
        calls = [f"{again}   # keeps the store", "penstock serve", "penstock --help"]
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


def _note_log(folder: Path, keep: Path | None) -> None:
    """Prints the path of the broker's log to stderr. If the log is deleted with the directory, prints its last line
    instead.
    """
    log = folder / "broker.log"
    if keep is not None:
        write_note(f"the broker's log: {log}.")
    elif log.exists() and (lines := log.read_text(encoding="utf-8", errors="replace").splitlines()):
        write_note(f"the broker's last log line: {lines[-1]}")
