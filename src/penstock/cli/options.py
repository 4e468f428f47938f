"""The arguments that several verbs share, and the form that all of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from penstock.cli.output import write

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
