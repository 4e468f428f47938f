"""The command `python -m bench`: all suites, or one with its options.

Tables go to stdout, what is going on to stderr. Exit status: 0 measured, also where a goal is missed; 1 a row failed;
2 nothing was measured, with one sentence that says why; 130 Ctrl-C.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from support.peers import PeerError

from bench import PROJECT
from bench.broker import BrokerSuite
from bench.console import ConsoleSuite
from bench.harness import BenchFailed
from bench.pipeline import PipelineSuite
from bench.recovery import RecoverySuite
from bench.replication import ReplicationSuite
from bench.report import Report, as_table, fill_page
from bench.run import Options, Suite, run
from bench.spark import SparkSuite
from bench.store import StoreSuite
from bench.workspace import GIB
from penstock.errors import PenstockError

PAGE = PROJECT / "docs" / "explanation" / "performance.md"

SUITES: tuple[Suite, ...] = (
    StoreSuite(),
    RecoverySuite(),
    BrokerSuite(),
    ReplicationSuite(),
    SparkSuite(),
    PipelineSuite(),
    ConsoleSuite(),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> int:
    """Measures Penstock beside Apache RocketMQ. Without a suite: all of them."""
    if context.invoked_subcommand is not None:
        return 0
    return max(show(measured(suite, Options(command=context.obj))) for suite in SUITES)


def command_of(suite: Suite) -> Callable[..., int]:
    """The command that runs one suite."""

    def command(
        context: typer.Context,
        quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs, not how fast.")] = False,
        rounds: Annotated[int, typer.Option(min=1, help="Rounds that count, after one warm-up.")] = Options().rounds,
        only: Annotated[str, typer.Option(metavar="NAMES", help="Groups or rows, joined by commas.")] = "",
        json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there as well.")] = None,
        folder: Annotated[Path | None, typer.Option("--dir", metavar="FOLDER", help="Where the stores lie.")] = None,
        java: Annotated[bool, typer.Option("--java/--no-java", help="Have Java do the same work.")] = True,
        write_docs: Annotated[bool, typer.Option("--write-docs", help="Put the table into the documents.")] = False,
        again: Annotated[
            Path | None, typer.Option("--from", metavar="FILE", help="Show the report of a run; measure nothing.")
        ] = None,
    ) -> int:
        names = tuple(name.strip() for name in only.split(",") if name.strip())
        options = Options(quick, rounds, names, folder, java, context.obj)
        report = Report.load(again) if again else measured(suite, options)
        status = show(report)
        if json is not None:
            report.save(json)
        if write_docs:
            fill_page(report, PAGE)
        return status

    return command


for each in SUITES:
    app.command(each.name, help=each.summary)(command_of(each))


def measured(suite: Suite, options: Options) -> Report:
    """Runs a suite and says on stderr how far it is."""
    console = Console(stderr=True, markup=False, highlight=False)
    need = suite.need(options.quick) / GIB
    console.print(f"bench {suite.name}: up to {need:.1f} GiB of disk, in a temporary folder that goes afterwards")
    if not console.is_terminal:
        return run(suite, options, lambda step: print(step, file=sys.stderr))
    with console.status("") as status:
        return run(suite, options, status.update)


def show(report: Report) -> int:
    """Prints a report; returns the exit status that it deserves."""
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(as_table(report))
    console.print()
    for sentence in (report.facts(), *report.notes()):
        console.print(sentence, soft_wrap=True)
    return 1 if report.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = shlex.join(["python", "-m", "bench", *given])
    try:
        status = app(args=given, obj=command, prog_name="python -m bench", standalone_mode=False)
    except (BenchFailed, PeerError, PenstockError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except typer.TyperException as error:
        print(f"bench: {error.format_message()}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
