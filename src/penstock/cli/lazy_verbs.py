"""Verbs and groups that are imported only when the command line names them, so that help and other verbs start fast.

Of a verb that is not imported the command has the name and the first line of its help, which is enough for the help of
the group and for suggestions. A test compares these lines with the verbs' own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from importlib import import_module
from typing import Final, NamedTuple

import typer


class LazyVerb(NamedTuple):
    """Where a verb is, and the first line of its help.

    `attribute` of `module` is the verb's function, the Typer app of a group, or, under the name `make_app`, a function
    that makes the app of a group whose verbs are lazy, too.
    """

    module: str
    attribute: str
    about: str


class _Everything:
    """Contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING: Final[Container[str]] = _Everything()


def add_verbs(app: typer.Typer, verbs: Mapping[str, LazyVerb], named: Container[str]) -> None:
    """Adds verbs to an app, in their order. Imports those whose names are in `named`, the words of the command line."""
    for name, verb in verbs.items():
        if name not in named:
            app.command(name, help=verb.about)(_not_imported)
            continue
        found = getattr(import_module(verb.module), verb.attribute)
        if verb.attribute == "make_app":
            found = found(named)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)


def _not_imported() -> None:
    raise AssertionError("the verb is not imported, because the command line does not name it")
