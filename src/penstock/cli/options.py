"""The arguments that several verbs share, and the form that all of them have.

Opens a store for reading only, and says what a reader should know about it on stderr, one sentence each.

That the store is in use or was not closed, what a start would find, and that the index does not fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from penstock.cli.output import say, write
from penstock.cli.progress import ProgressLine
from penstock.store import MessageStore
from penstock.store.readonly.store_folder import StoreFolder, quiet_log

LONG_MAX: Final = 2**63 - 1


def option(name: str, metavar: str, meaning: str) -> Any:
    """An option that takes a text."""
    return typer.Option(name, metavar=metavar, help=meaning, show_default=False)


def number(name: str, metavar: str, meaning: str, *, low: int = -LONG_MAX, default: bool = False) -> Any:
    """An option that takes a whole number, from `low` on and of at most 64 bits."""

    def check(value: int | None) -> int | None:
        if value is not None and not low <= value <= LONG_MAX:
            allowed = f"from {low} on" if value < low else f"at most {LONG_MAX}"
            raise typer.BadParameter(f"{value} is out of range, it must be {allowed}")
        return value

    return typer.Option(name, metavar=metavar, callback=check, help=meaning, show_default=default)


Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The store's folder.", show_default=False)]
Config: TypeAlias = Annotated[Path | None, option("--config", "FILE", "A broker.conf to take settings from.")]
Pairs: TypeAlias = Annotated[
    list[str] | None,
    option("--set", "NAME=VALUE", "A setting by RocketMQ's name; repeatable, wins over --config."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text for people.")]
NoBody: TypeAlias = Annotated[bool, typer.Option("--no-body", help="Leave the bodies out.")]
Topic: TypeAlias = Annotated[str, option("--topic", "T", "The topic.")]
QueueId: TypeAlias = Annotated[int, number("--queue", "N", "The queue's id.")]


def help_if_alone(context: typer.Context) -> None:
    """A group without a verb shows its help."""
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")


_NOTES_SAID = 5


class View(NamedTuple):
    """A store opened for reading only."""

    store: MessageStore
    place: StoreFolder
    index_problem: str


@contextlib.contextmanager
def open_view(
    folder: Path, config: Path | None, pairs: Sequence[str] | None, *, needs_index: bool = False, **defaults: Any
) -> Iterator[View]:
    """The store as a start would serve it. `defaults` change settings that were not given."""
    place = StoreFolder.find(folder, config, pairs)
    with ProgressLine() as line:
        store, problem = place.view(needs_index=needs_index, progress=line.tell, **defaults)
    with quiet_log(), store:
        view = View(store, place, problem)
        _say_all(view)
        yield view


def say_state(place: StoreFolder, shown: str) -> None:
    """Says what is not as after a clean exit, and what is `shown` instead."""
    root = place.layout.root
    if place.owner:
        say(f"{root} is in use by {owner_name(place.owner)}: {shown}, at this moment.")
    elif not place.closed_cleanly:
        say(f"{root} was not closed cleanly: {shown}.")


def _say_all(view: View) -> None:
    say_state(view.place, "what follows is the store as a start would serve it")
    if view.index_problem and view.place.settings.message_index_enable:
        say(f"{view.index_problem}.")
    findings = view.store.report.notes
    for finding in findings[:_NOTES_SAID]:
        say(f"a start would report: {finding}.")
    if len(findings) > _NOTES_SAID:
        say(f"and {len(findings) - _NOTES_SAID} more, which `penstock store info {view.place.layout.root}` shows.")


def owner_name(owner: int) -> str:
    """The owner for people; a process of another container or host has no number here."""
    return f"process {owner}" if owner > 0 else "another process"
