"""The question before a change that cannot be undone: what would happen, and whether it shall.

A verb that deletes or resets checks first that its target exists, says what would happen, and asks at a terminal.
`--yes` answers the question, `--dry-run` ends before it. Without a terminal the verb cannot ask, and acts, as
mqadmin's do in scripts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, TypeAlias

import typer

from penstock.cli import exit_codes
from penstock.cli.output import flush, plain, write, write_note

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_MAX_ANSWER = 4096


def describe_change(what: str, *, dry_run: bool) -> None:
    """Says what a change concerns: on stdout if that is all that was asked for, else on stderr, before the question."""
    if dry_run:
        write(f"{plain(what)}; nothing was changed\n")
    elif sys.stdin.isatty():
        write_note(f"{what}.")


async def confirm(question: str, yes: bool) -> None:
    """Asks on stderr if stdin is a terminal. Raises typer.Exit with status 2 if the answer is not yes.

    The answer is awaited on the event loop, so that an interrupt ends the program at once.
    """
    if yes or not sys.stdin.isatty():
        return
    flush()
    print(f"{plain(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    terminal = sys.stdin.fileno()

    def read() -> None:
        if not answered.done():
            answered.set_result(os.read(terminal, _MAX_ANSWER))

    loop.add_reader(terminal, read)
    try:
        answer = await answered
    finally:
        loop.remove_reader(terminal)
    if answer.decode(errors="replace").strip().lower() not in ("y", "yes"):
        write_note("nothing was changed.")
        raise typer.Exit(exit_codes.NOT_RUN)
