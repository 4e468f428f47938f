"""The group `penstock pipeline`: Spark jobs over whole stores."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import typer

from penstock.cli.lazy_verbs import LazyVerb, add_verbs
from penstock.cli.options import VerbGroup, help_if_alone

_VERBS: Final = {
    "usage": LazyVerb(
        "penstock.cli.pipeline.disk_usage_and_lag", "usage", "Disk usage by topic, queue, tag, producer, day and hour."
    ),
    "search": LazyVerb(
        "penstock.cli.pipeline.search", "search", "Find messages by key, content, property, tag or time."
    ),
    "lag": LazyVerb(
        "penstock.cli.pipeline.disk_usage_and_lag",
        "lag",
        "Lag of consumer groups in messages and time, and stuck queues.",
    ),
    "verify": LazyVerb(
        "penstock.cli.pipeline.verify", "verify", "Check every record, unit, key and config file of stores."
    ),
    "diff": LazyVerb("penstock.cli.pipeline.diff", "diff", "Compare two stores, or a store and a cluster."),
    "export": LazyVerb("penstock.cli.pipeline.export", "export", "Export messages incrementally to files or tables."),
    "rebuild": LazyVerb(
        "penstock.cli.pipeline.verify", "rebuild", "Rebuild queues and index from the log, in parallel."
    ),
    "replay": LazyVerb(
        "penstock.cli.pipeline.replay", "replay", "Replay an export, a topic or dead letters into topics."
    ),
    "dispatch": LazyVerb(
        "penstock.cli.pipeline.dispatch", "dispatch", "Build the queues of a store with dispatch=external."
    ),
    "import": LazyVerb(
        "penstock.cli.pipeline.replay", "import_files", "Import rows of Parquet files or JSON lines into topics."
    ),
    "lake": LazyVerb(
        "penstock.cli.pipeline.lake", "app", "Messages as tables: a project for Spark Declarative Pipelines."
    ),
}


def pipeline(context: typer.Context) -> None:
    """Spark jobs over whole stores.

    They run on this machine, or on a Spark cluster with --master. Most only read, and the store may be in use. Exit
    status: 0 done; 1 problems found (verify, diff), or no such queue (rebuild); 2 could not run.

    Examples:

    \b
      penstock pipeline usage --store data/store
      penstock pipeline search --store data/store --text 'order 7'
      penstock pipeline usage --store data/store --master spark://10.0.0.1:7077
    """
    help_if_alone(context)


def make_app(named: Container[str]) -> typer.Typer:
    """Returns the group. Imports the verbs whose names are in `named`, the words of the command line."""
    app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(pipeline)
    add_verbs(app, _VERBS, named)
    return app
