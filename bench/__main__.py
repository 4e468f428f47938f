"""The command `python -m bench`: all suites, one suite, or rows by their names.

    python -m bench                            every suite, about an hour
    python -m bench send-128b-64 catch-up      rows and groups, of whichever suites have them
    python -m bench --only goals --rounds 5    the rows of the project's goals
    python -m bench store --only put           one suite
    python -m bench tables                     the tables of the documents, from the runs that were kept

Tables go to stdout, progress to stderr. A full run on a quiet machine is kept in `bench/results`, see `bench.report`;
one of two source trees only if asked to, because it belongs to a change. Exit status: 0 measured, even if a goal is
missed; 1 a row failed; 2 nothing was measured, and one sentence says why; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from support.peers import PeerError

from bench.broker import BrokerSuite
from bench.brokers import BrokersSuite
from bench.client import ClientSuite
from bench.cold import ColdSuite
from bench.compare import CompareSuite
from bench.console import ConsoleSuite
from bench.failover import FailoverSuite
from bench.goals import GOALS
from bench.pipeline import PipelineSuite
from bench.pipeline.dispatch import DispatchSuite
from bench.producer import ProducerSuite
from bench.queues import QueuesSuite
from bench.queues.fetch import WAYS, fetch
from bench.recovery import RecoverySuite
from bench.replication import ReplicationSuite
from bench.report import Report, as_table, keep, public_command, why_not_kept
from bench.run import Options, Suite, run
from bench.soak import CHART_FILE, JSON_FILE, NEED, SoakPlan, save, soak, summary
from bench.spark import SparkSuite
from bench.sql import SqlSuite
from bench.store import StoreSuite
from bench.syncflush import calls_per_put, describe, turn
from bench.tables import write_tables
from bench.workspace import GIB, BenchFailed, workspace
from penstock.errors import PenstockError

SUITES: tuple[Suite, ...] = (
    StoreSuite(),
    RecoverySuite(),
    BrokerSuite(),
    ProducerSuite(),
    BrokersSuite(),
    ReplicationSuite(),
    FailoverSuite(),
    SparkSuite(),
    PipelineSuite(),
    DispatchSuite(),
    SqlSuite(),
    ConsoleSuite(),
    QueuesSuite(),
)
ALL_GOALS = "goals"

_ROUNDS = Options().rounds
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs, not how fast.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds that count, after one warm-up.")]
Only = Annotated[str, typer.Option(metavar="NAMES", help="Groups or rows, joined by commas.")]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there as well.")]
Folder = Annotated[Path | None, typer.Option("--dir", metavar="FOLDER", help="Where the stores are created.")]
Java = Annotated[bool, typer.Option("--java/--no-java", help="Measure the other side as well.")]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--no-keep",
        help="Keep a full run in bench/results; by default unless the machine is busy.",
        show_default=False,
    ),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    quick: Quick = False,
    rounds: Rounds = _ROUNDS,
    only: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Suites, groups or rows, joined by commas; 'goals' for those of the goals."),
    ] = "",
    folder: Folder = None,
    java: Java = True,
    keep_it: Keep = None,
) -> int:
    """Measures Penstock beside Apache RocketMQ and others. Without names: everything, which takes about an hour."""
    if context.invoked_subcommand is not None:
        return 0
    status = 0
    for suite, names in chosen(names_of(only)):
        try:
            report = measured(suite, Options(quick, rounds, names, folder, java, context.obj.command))
            status = max(status, show(report))
            keep_full(report, context.obj, keep_it)
        except (BenchFailed, PeerError, PenstockError) as error:  # the other suites still count
            print(f"bench {suite.name}: {error}", file=sys.stderr)
            status = 2
    return status


def chosen(only: Sequence[str], suites: Sequence[Suite] = SUITES) -> list[tuple[Suite, tuple[str, ...]]]:
    """The suites that have one of these names, with the names that are theirs; none of a suite's means all of it.

    Raises BenchFailed for a name that no suite has.
    """
    if not only:
        return [(suite, ()) for suite in suites]
    found: list[tuple[Suite, tuple[str, ...]]] = []
    known = {ALL_GOALS}
    for suite in suites:
        tasks = suite.tasks(Path("unused"), quick=True)  # starts nothing
        theirs = {task.group for task in tasks} | {row.name for task in tasks for row in task.rows}
        known |= {suite.name, *theirs}
        wanted = tuple(name for name in only if name in theirs)
        if ALL_GOALS in only:
            wanted += tuple(name for name in GOALS.get(suite.name, ()) if name in theirs)
        if suite.name in only:
            found.append((suite, ()))
        elif wanted:
            found.append((suite, wanted))
    if unknown := [name for name in only if name not in known]:
        names = ", ".join(suite.name for suite in suites)
        raise BenchFailed(
            f"there is nothing called '{unknown[0]}'; suites are {names}; 'python -m bench SUITE --only x' "
            "names the groups and rows of one"
        )
    return found


class Invocation(msgspec.Struct, frozen=True):
    """What was typed, and the load average of the machine before it did anything."""

    command: str
    load_average: float


def keep_full(report: Report, given: Invocation, wanted: bool | None) -> None:
    """Keeps a full run if that is wanted, or if it was not said and the machine was quiet; says if it does not."""
    if wanted is False:
        return
    reason = why_not_kept(report)
    if not reason and wanted is None and given.load_average >= report.machine.cores:
        reason = f"the load average was {given.load_average:.1f} before it began; --keep keeps it all the same"
    if reason:
        said = f"not kept in bench/results: {reason}"
    else:
        said = f"kept in bench/results/{keep(report).name}; 'python -m bench tables' shows it in the documents"
    print(f"bench {report.suite}: {said}", file=sys.stderr)


@app.command("tables", help="Writes the tables of the documents from the runs that were kept.")
def command_of_tables() -> int:
    changed = write_tables()
    print(*(page.name for page in changed), sep="\n", end="\n" if changed else "")
    if any(page.name.startswith("README") for page in changed):
        print("both READMEs have new figures: run 'make translated PAGES=README.zh.md'", file=sys.stderr)
    return 0


@app.command("fetch", help="Fetches the servers and clients that the suite queues is compared with.")
def command_of_fetch(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(WAYS)}; all by default.")] = None,
) -> int:
    fetch(names or (), lambda step: print(step, file=sys.stderr, flush=True))
    return 0


def command_of(suite: Suite) -> Callable[..., int]:
    """The command that runs one suite."""

    def command(
        context: typer.Context,
        quick: Quick = False,
        rounds: Rounds = _ROUNDS,
        only: Only = "",
        json: Json = None,
        folder: Folder = None,
        java: Java = True,
        keep_it: Keep = None,
        again: Annotated[
            Path | None, typer.Option("--from", metavar="FILE", help="Show the report of a run; measure nothing.")
        ] = None,
    ) -> int:
        options = Options(quick, rounds, names_of(only), folder, java, context.obj.command)
        report = Report.load(again) if again else measured(suite, options)
        status = show(report)
        if json is not None:
            report.save(json)
        if again is None:
            keep_full(report, context.obj, keep_it)
        return status

    return command


for each in SUITES:
    app.command(each.name, help=each.summary)(command_of(each))


def command_of_trees(suite: type[CompareSuite | ColdSuite | ClientSuite]) -> Callable[..., int]:
    """The command that runs a suite which compares two source trees."""

    def command(
        context: typer.Context,
        before: Annotated[Path, typer.Option(metavar="TREE", help="The source tree before a change, or its src.")],
        after: Annotated[Path, typer.Option(metavar="TREE", help="The source tree after it.")],
        changes: Annotated[
            list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the tree after it.")
        ] = None,
        quick: Quick = False,
        rounds: Rounds = _ROUNDS,
        only: Only = "",
        json: Json = None,
        folder: Folder = None,
        keep_it: Annotated[bool, typer.Option("--keep", help="Keep a full run in bench/results.")] = False,
    ) -> int:
        options = Options(quick, rounds, names_of(only), folder, command=context.obj.command)
        report = measured(suite(before, after, dict(each.split("=", 1) for each in changes or ())), options)
        if json is not None:
            report.save(json)
        status = show(report)
        keep_full(report, context.obj, keep_it)
        return status

    return command


for trees in (CompareSuite, ColdSuite, ClientSuite):
    app.command(trees.name, help=trees.summary)(command_of_trees(trees))


@app.command(
    "soak", help="A broker under load for an hour, killed every minute, while retention deletes and Spark reads."
)
def command_of_soak(
    context: typer.Context,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = SoakPlan().minutes,
    kill_every: Annotated[float, typer.Option(min=1, help="Seconds between two kills.")] = SoakPlan().kill_every_s,
    rate: Annotated[int, typer.Option(min=1, help="Messages a second.")] = SoakPlan().rate,
    keep: Annotated[int, typer.Option(min=2, help="Log files of 4 MiB that stay.")] = SoakPlan().keep_files,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Have Spark read the live store.")] = True,
    json: Annotated[Path, typer.Option(metavar="FILE", help="Where the result goes.")] = JSON_FILE,
    chart: Annotated[Path, typer.Option(metavar="FILE", help="Where the chart goes.")] = CHART_FILE,
    folder: Folder = None,
) -> int:
    plan = SoakPlan(minutes=minutes, rate=rate, kill_every_s=kill_every, keep_files=keep, spark=spark)
    print(
        f"bench soak: {minutes:g} minutes, up to {NEED / GIB:.1f} GiB of disk, in a temporary folder that is removed "
        "afterwards",
        file=sys.stderr,
    )
    result = soak(plan, folder, context.obj.command, lambda step: print(step, file=sys.stderr, flush=True))
    save(result, json, chart)
    print(*summary(result), sep="\n")
    return 1 if result.findings else 0


@app.command("syncflush", help="A put under SYNC_FLUSH beside a bare msync of as many bytes, in turns on one disk.")
def command_of_syncflush(
    puts: Annotated[int, typer.Option(min=1, help="Puts of a round.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, one line each.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads that put in the second half of a round.")] = 16,
    folder: Folder = None,
) -> int:
    with workspace(folder, GIB) as place:
        for _ in range(rounds):
            print("one thread:", describe(turn(place, puts, 1)), flush=True)
            print(f"{threads} threads:", describe(turn(place, puts * 4, threads)), flush=True)
        calls = calls_per_put(place)
    if calls is not None:
        print(f"system calls of a put from one thread: {calls['futex']:.1f} futex, {calls['msync']:.1f} msync")
    return 0


COMMANDS = {each.name for each in app.registered_commands}


def names_of(only: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in only.split(",") if name.strip())


def measured(suite: Suite, options: Options) -> Report:
    """Runs a suite and reports its progress on stderr."""
    console = Console(stderr=True, markup=False, highlight=False)
    need = suite.need(options.quick) / GIB
    console.print(f"bench {suite.name}: up to {need:.1f} GiB of disk, in a temporary folder that is removed afterwards")
    if not console.is_terminal:
        return run(suite, options, lambda step: print(step, file=sys.stderr))
    with console.status("") as status:
        return run(suite, options, status.update)


def show(report: Report) -> int:
    """Prints a report; returns the exit status."""
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(as_table(report))
    console.print()
    for sentence in (report.facts(), *report.notes()):
        console.print(sentence, soft_wrap=True)
    return 1 if report.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    invocation = Invocation(public_command(given), os.getloadavg()[0])
    names = list(takewhile(lambda word: not word.startswith("-"), given))
    if names and names[0] not in COMMANDS:
        given = ["--only", ",".join(names), *given[len(names) :]]
    try:
        status = app(args=given, obj=invocation, prog_name="python -m bench", standalone_mode=False)
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
