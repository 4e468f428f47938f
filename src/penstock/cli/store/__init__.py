"""The group `penstock store`: inspects, verifies and repairs a store offline."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import typer

from penstock.cli.lazy_verbs import LazyVerb, add_verbs
from penstock.cli.options import VerbGroup, help_if_alone

_VERBS: Final = {
    "info": LazyVerb("penstock.cli.store.info", "info", "Contents and state of a store."),
    "dump": LazyVerb("penstock.cli.store.read", "dump", "Print all messages by topic, queue and offset."),
    "log": LazyVerb("penstock.cli.store.read", "log", "Print every record of the log, in log order."),
    "get": LazyVerb("penstock.cli.store.read", "get", "Print one page of a queue, as a consumer would get it."),
    "query": LazyVerb("penstock.cli.store.read", "query", "Find messages by key, through the index."),
    "offset": LazyVerb("penstock.cli.store.read", "offset", "Print the queue offset for a store time."),
    "conf": LazyVerb(
        "penstock.cli.store.info", "conf", "Print the broker.conf that a Java broker needs for this store."
    ),
    "verify": LazyVerb(
        "penstock.cli.store.verify", "verify", "Check every record, unit, key and config file of a store."
    ),
    "recover": LazyVerb("penstock.cli.store.repair", "recover", "Recover a store without serving it."),
    "repair": LazyVerb("penstock.cli.store.repair", "repair", "Repair the log, queues, index and config files."),
    "rebuild": LazyVerb("penstock.cli.store.repair", "rebuild", "Rebuild queues and index from the log."),
    "retention": LazyVerb(
        "penstock.cli.store.retention", "retention", "Delete expired log files, or explain what would be deleted."
    ),
    "usage": LazyVerb(
        "penstock.cli.pipeline.disk_usage_and_lag",
        "usage_here",
        "Disk usage by topic, queue, tag, producer, day and hour.",
    ),
    "search": LazyVerb(
        "penstock.cli.pipeline.search", "search_here", "Find messages by key, content, property, tag or time."
    ),
    "lag": LazyVerb(
        "penstock.cli.pipeline.disk_usage_and_lag",
        "lag_here",
        "Lag of consumer groups in messages and time, and stuck queues.",
    ),
    "diff": LazyVerb("penstock.cli.pipeline.diff", "diff_here", "Compare two stores."),
}


def store(context: typer.Context) -> None:
    """Inspect, verify and repair a store offline.

    recover, repair, rebuild and retention change the store, which must not be open; the others only read. A store in
    use is shown in its current state, a crashed one as a start would serve it. File sizes are read from the files;
    --config and --set supply what the files do not say.

    Examples:

    \b
      penstock store info data/store
      penstock store dump data/store --topic orders --json
      penstock store verify data/store
    """
    help_if_alone(context)


def make_app(named: Container[str]) -> typer.Typer:
    """Returns the group. Imports the verbs whose names are in `named`, the words of the command line."""
    app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(store)
    add_verbs(app, _VERBS, named)
    return app
