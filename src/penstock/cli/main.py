"""The command `penstock`: puts the groups together and turns every error into one sentence and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import exits, store, tour
from penstock.cli.options import help_if_alone
from penstock.cli.output import flush, say, write
from penstock.errors import PenstockError

app = typer.Typer(name="penstock", add_completion=False, rich_markup_mode=None)
app.add_typer(store.app, name="store")
app.command()(tour.tour)


def _show_version(wanted: bool) -> None:
    if wanted:
        write(f"penstock {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A message store whose files are Apache RocketMQ's.

    Exit status: 0 done; 1 the store has a problem, where finding that is what the verb is for; 2 bad input, or a store
    that cannot be opened as it is.

    Examples:

    \b
      penstock tour
      penstock store info data/store
    """
    help_if_alone(context)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status. Whatever goes wrong is one sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(args=arguments, prog_name="penstock", standalone_mode=False)
        flush()
    except SystemExit as gone:
        return int(gone.code or exits.OK)
    except (PenstockError, typer.TyperException, OSError, UnicodeError) as error:
        say(_sentence(error))
        return exits.NOT_RUN
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return status if isinstance(status, int) else exits.OK


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, typer.TyperException):
        text = error.format_message().rstrip(".")
        context = getattr(error, "ctx", None)
        text += "" if context is None else f" (see `{context.command_path} --help`)"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return text if text.endswith((".", "?", "!")) else f"{text}."


if __name__ == "__main__":
    sys.exit(main())
