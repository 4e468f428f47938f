"""The command `penstock`: runs the requested verb. Every error becomes one sentence on stderr and an exit status.

mqadmin's verbs and short options work as well: `penstock topicList -n …` is `penstock topic list -n …`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Sequence
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from penstock import __version__
from penstock.cli import exit_codes
from penstock.cli.lazy_verbs import LazyVerb, add_verbs
from penstock.cli.mqadmin_verbs import ELSEWHERE, translated
from penstock.cli.options import VerbGroup, help_if_alone
from penstock.cli.output import flush, write, write_note
from penstock.errors import PenstockError
from penstock.optional_packages import missing_package

COMMANDS: Final = {
    "demo": LazyVerb("penstock.cli.demo", "demo", "Two-minute demo: kill a broker, lose nothing."),
    "serve": LazyVerb("penstock.cli.serve", "serve", "Run a broker with a name server and a web console."),
    "namesrv": LazyVerb("penstock.cli.namesrv", "namesrv", "Run a name server, for several brokers."),
    "console": LazyVerb("penstock.cli.console", "console", "Run the web console for a RocketMQ cluster."),
    "produce": LazyVerb("penstock.cli.cluster.produce", "produce", "Send messages to a topic."),
    "consume": LazyVerb("penstock.cli.cluster.consume", "consume", "Print the messages of a topic."),
    "doctor": LazyVerb(
        "penstock.cli.doctor", "doctor", "Check this machine: ports, disk, limits, clock, Java, extras, store."
    ),
    "usage": LazyVerb(
        "penstock.cli.pipeline.disk_usage_and_lag",
        "usage_of_stores",
        "Disk usage by topic, queue, tag, producer, day and hour.",
    ),
    "search": LazyVerb(
        "penstock.cli.pipeline.search", "search_stores", "Find messages by key, content, property, tag or time."
    ),
    "lag": LazyVerb(
        "penstock.cli.pipeline.disk_usage_and_lag",
        "lag_of_stores",
        "Lag of consumer groups in messages and time, and stuck queues.",
    ),
    "diff": LazyVerb("penstock.cli.pipeline.diff", "diff_stores", "Compare two stores."),
    "verify": LazyVerb(
        "penstock.cli.pipeline.verify", "verify_stores", "Check every record, unit, key and config file of stores."
    ),
    "rebuild": LazyVerb(
        "penstock.cli.pipeline.verify", "rebuild_stores", "Rebuild queues and index of stores from the log."
    ),
    "export": LazyVerb(
        "penstock.cli.pipeline.export", "export_stores", "Export messages of stores to files or tables."
    ),
    "sql": LazyVerb("penstock.cli.sql", "sql", "Query stores with SQL, without a broker and without Java."),
    "store": LazyVerb("penstock.cli.store", "make_app", "Inspect, verify and repair a store offline."),
    "topic": LazyVerb("penstock.cli.cluster.topic", "app", "Topics: list, create, change, delete, inspect."),
    "group": LazyVerb("penstock.cli.cluster.group", "app", "Consumer groups: lag, members, settings."),
    "message": LazyVerb("penstock.cli.cluster.message", "app", "Messages: send, print, find."),
    "offset": LazyVerb("penstock.cli.cluster.offset", "app", "Offsets of queues and groups: show, reset, set."),
    "cluster": LazyVerb("penstock.cli.cluster.cluster", "app", "Brokers and name servers: state and settings."),
    "perf": LazyVerb("penstock.cli.cluster.perf", "app", "Measure sends and reads of a running cluster."),
    "context": LazyVerb("penstock.cli.cluster_contexts", "app", "Addresses and accounts of clusters, by name."),
    "pipeline": LazyVerb("penstock.cli.pipeline", "make_app", "Spark jobs over whole stores."),
}
OVER_NETWORK: Final = ("topic", "group", "message", "offset", "cluster")
_PREFIX: Final = re.compile(r"^Invalid value(?: for '([^']+)'(?: / '[^']+')*(?=:)|: )")
"""The start of Typer's error about an option. It lists all names of the option; the first name is enough."""


def _show_version(wanted: bool) -> None:
    if wanted:
        write(f"penstock {__version__}\n")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A RocketMQ-compatible message broker with its tools.

    Exit status: 0 done; 1 problems found (verify, repair, diff); 2 bad input, or a store that cannot be opened.

    Examples:

    \b
      penstock demo --without-spark
      penstock serve
      penstock produce orders 'two shirts'
      penstock consume orders --follow
    """
    help_if_alone(context)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. An error is one sentence on stderr, never a traceback."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's linear algebra: its threads spin, and no verb needs it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = translated(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] and given[0] in ELSEWHERE:
            raise typer.BadParameter(f"mqadmin's {given[0]} is not here; use {ELSEWHERE[given[0]]}")
        app = make_app(given or _words_to_complete(), completion=not given or given[0].startswith("-"))
        status = app(args=given, prog_name="penstock", standalone_mode=False)
        flush()
    except SystemExit as ended:
        return int(ended.code or exit_codes.OK)
    except (PenstockError, typer.TyperException, OSError, UnicodeError) as error:
        write_note(_sentence(error), is_error=True)
        return exit_codes.NOT_RUN
    except ModuleNotFoundError as error:
        missing = missing_package(error.name or "", given)
        if missing is None:
            raise
        write_note(_sentence(missing), is_error=True)
        return exit_codes.NOT_RUN
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return status if isinstance(status, int) else exit_codes.OK


def make_app(named: Container[str], *, completion: bool = True) -> typer.Typer:
    """Returns the command. Imports the verbs and groups whose names are in `named`, the words of the command line.

    `completion` adds the options that install completion for the shell. A command line that begins with a verb does
    without: Typer would import pydantic to check that they were not given.
    """
    app = typer.Typer(name="penstock", cls=VerbGroup, rich_markup_mode=None, add_completion=completion)
    app.callback(invoke_without_command=True)(root)
    add_verbs(app, COMMANDS, named)
    return app


def _words_to_complete() -> list[str]:
    """Returns the words so far if a shell asks for completion. Bash has its own variable for them."""
    if "_PENSTOCK_COMPLETE" not in os.environ:
        return []
    text = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return translated(text.split()[1:])


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, typer.TyperException):
        text = _PREFIX.sub(r"\1", error.format_message().rstrip(".").replace("Value error, ", ""))
        context = getattr(error, "ctx", None)
        text += "" if context is None else f" (see `{context.command_path} --help`)"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return text if text.endswith((".", "?", "!")) else f"{text}."


if __name__ == "__main__":
    sys.exit(main())
