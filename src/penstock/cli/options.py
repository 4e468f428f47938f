"""Options that several verbs share, and `open_readonly`, which opens a store for the verbs that only read.

`open_readonly` prints notes to stderr, one sentence each: if the store is in use, if it was not closed cleanly, what
recovery would report at the next start, and if the index cannot be read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from penstock.cli.output import write, write_note
from penstock.cli.progress import ProgressLine
from penstock.store import MessageStore
from penstock.store.readonly.store_folder import StoreFolder, quiet_log

LONG_MAX: Final = 2**63 - 1


def option(name: str, metavar: str, meaning: str) -> Any:
    """Returns an option with a text value."""
    return typer.Option(name, metavar=metavar, help=meaning, show_default=False)


def number(name: str, metavar: str, meaning: str, *, low: int = -LONG_MAX, default: bool = False) -> Any:
    """Returns an option with an integer value, at least `low` and at most the largest signed 64-bit integer."""

    def check(value: int | None) -> int | None:
        if value is not None and not low <= value <= LONG_MAX:
            allowed = f"from {low} on" if value < low else f"at most {LONG_MAX}"
            raise typer.BadParameter(f"{value} is out of range, it must be {allowed}")
        return value

    return typer.Option(name, metavar=metavar, callback=check, help=meaning, show_default=default)


Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The store's directory.", show_default=False)]
Config: TypeAlias = Annotated[Path | None, option("--config", "FILE", "Read settings from this broker.conf.")]
Pairs: TypeAlias = Annotated[
    list[str] | None,
    option("--set", "NAME=VALUE", "A setting by RocketMQ's name; repeatable, overrides --config."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
NoBody: TypeAlias = Annotated[bool, typer.Option("--no-body", help="Omit the bodies.")]
Topic: TypeAlias = Annotated[str, option("--topic", "T", "The topic.")]
QueueId: TypeAlias = Annotated[int, number("--queue", "N", "The queue's id.")]


def help_if_alone(context: typer.Context) -> None:
    """Prints a group's help if it is called without a verb."""
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")


CommonOption: TypeAlias = tuple[str, Any, Any]
"""(parameter name, annotation, default value)"""


def with_common_options(
    verb: Callable[..., Any],
    common: Sequence[CommonOption],
    invoke: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[..., None]:
    """Turns the verb into a command that has the verb's own options, then the common options.

    The verb's first parameter is its call object, not an option. `invoke` gets two dictionaries: the values of the
    common options, and the values of the verb's own options.
    """

    @functools.wraps(verb)
    def command(**options: Any) -> None:
        invoke({name: options.pop(name) for name, _, _ in common}, options)

    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in common
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


# -- read-only stores --

_MAX_NOTES = 5


class ReadOnlyStore(NamedTuple):
    """A store opened for reading only."""

    store: MessageStore
    place: StoreFolder
    index_problem: str


@contextlib.contextmanager
def open_readonly(
    folder: Path, config: Path | None, pairs: Sequence[str] | None, *, needs_index: bool = False, **defaults: Any
) -> Iterator[ReadOnlyStore]:
    """Opens a store read-only, in the state that recovery would give it at the next start.

    `defaults` are values for settings that neither `config` nor `pairs` sets.
    """
    place = StoreFolder.find(folder, config, pairs)
    with ProgressLine() as line:
        store, problem = place.view(needs_index=needs_index, progress=line.report, **defaults)
    with quiet_log(), store:
        view = ReadOnlyStore(store, place, problem)
        _note_findings(view)
        yield view


def note_state(place: StoreFolder, shown: str) -> None:
    """Prints a note to stderr if a store is in use or was not closed cleanly. `shown` says which state the output
    shows.
    """
    root = place.layout.root
    if place.owner:
        write_note(f"{root} is in use by {owner_name(place.owner)}: {shown}, as of now.")
    elif not place.closed_cleanly:
        write_note(f"{root} was not closed cleanly: {shown}.")


def _note_findings(view: ReadOnlyStore) -> None:
    note_state(view.place, "showing the store as a start would serve it")
    if view.index_problem and view.place.settings.message_index_enable:
        write_note(f"{view.index_problem}.")
    findings = view.store.report.notes
    for finding in findings[:_MAX_NOTES]:
        write_note(f"a start would report: {finding}.")
    if len(findings) > _MAX_NOTES:
        write_note(f"and {len(findings) - _MAX_NOTES} more; `penstock store info {view.place.layout.root}` lists them.")


def owner_name(owner: int) -> str:
    """Returns a name for the process that owns a store. A process of another container or host has no pid here."""
    return f"process {owner}" if owner > 0 else "another process"
