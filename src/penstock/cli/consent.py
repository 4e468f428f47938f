"""Asking before the quarantine grows beyond its limit."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

from penstock.cli.output import in_units
from penstock.cli.progress import ProgressLine
from penstock.store.quarantine import MayExceed

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Keep aside what must be, also beyond quarantineMaxBytes.")]


def asked(yes: bool, progress: ProgressLine) -> MayExceed:
    """Who answers whether it may: the option, or the person at the terminal; nobody else does."""

    def answer(needed: int, held: int, limit: int) -> bool:
        if yes or not sys.stdin.isatty():
            return yes
        question = (
            f"{in_units(needed)} have to be kept aside, {in_units(held)} are already, and quarantineMaxBytes allows "
            f"{in_units(limit)}. Go on?"
        )
        progress.clear()
        return typer.confirm(question, err=True)

    return answer
