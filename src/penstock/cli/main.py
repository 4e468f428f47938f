"""The command `penstock`: runs the requested verb. Every error becomes one sentence on stderr and an exit status.

mqadmin's verbs and short options work as well: `penstock topicList -n …` is `penstock topic list -n …`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from penstock import __version__
from penstock.cli import exit_codes
from penstock.cli.options import help_if_alone
from penstock.cli.output import flush, write, write_note
from penstock.errors import PenstockError

VERBS: Final = {
    "updateTopic": "topic create",
    "deleteTopic": "topic delete",
    "topicList": "topic list",
    "topicRoute": "topic route",
    "topicStatus": "topic status",
    "topicClusterList": "topic clusters",
    "updateSubGroup": "group update",
    "deleteSubGroup": "group delete",
    "consumerProgress": "group progress",
    "consumerStatus": "group status",
    "consumerConnection": "group connections",
    "producerConnection": "group producers",
    "sendMessage": "message send",
    "consumeMessage": "message consume",
    "printMsg": "message print",
    "printMsgByQueue": "message print-queue",
    "queryMsgById": "message by-id",
    "queryMsgByKey": "message by-key",
    "queryMsgByUniqueKey": "message by-unique-key",
    "queryMsgByOffset": "message at",
    "resetOffsetByTime": "offset reset",
    "skipAccumulatedMessage": "offset skip",
    "cloneGroupOffset": "offset clone",
    "clusterList": "cluster list",
    "brokerStatus": "cluster status",
    "haStatus": "cluster replication",
    "getBrokerConfig": "cluster config",
    "updateBrokerConfig": "cluster set",
    "wipeWritePerm": "cluster wipe-write-perm",
    "addWritePerm": "cluster add-write-perm",
    "getNamesrvConfig": "cluster namesrv-config",
    "updateNamesrvConfig": "cluster set-namesrv",
    "updateKvConfig": "cluster put-kv",
    "deleteKvConfig": "cluster delete-kv",
}
"""mqadmin's verbs, and the Penstock verbs that replace them."""


def translated(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with mqadmin's verb replaced by Penstock's verb. Returns any other command line
    unchanged.
    """
    if not arguments or arguments[0] not in VERBS:
        return list(arguments)
    rest = ["--help" if each == "-h" else each for each in arguments[1:]]
    return [*VERBS[arguments[0]].split(), *rest]


app = typer.Typer(name="penstock", add_completion=False, rich_markup_mode=None)
OVER_NETWORK: Final = ("topic", "group", "message", "offset", "cluster")
_VERBS: Final = ("demo", "serve", "namesrv", "console")
_GROUPS: Final = ("store", *OVER_NETWORK, "pipeline")
_PREFIX: Final = re.compile(r"^Invalid value(?: for '([^']+)'(?: / '[^']+')*(?=:)|: )")
"""The start of Typer's error about an option. It lists all names of the option; the first name is enough."""


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
    """A RocketMQ-compatible message broker with its tools.

    Exit status: 0 done; 1 problems found (verify, repair, diff); 2 bad input, or a store that cannot be opened.

    Examples:

    \b
      penstock demo --without-spark
      penstock store info data/store
    """
    help_if_alone(context)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. An error is one sentence on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        given = translated(sys.argv[1:] if arguments is None else arguments)
        _add_groups(given)
        status = app(args=given, prog_name="penstock", standalone_mode=False)
        flush()
    except SystemExit as ended:
        return int(ended.code or exit_codes.OK)
    except (PenstockError, typer.TyperException, OSError, UnicodeError) as error:
        write_note(_sentence(error))
        return exit_codes.NOT_RUN
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return status if isinstance(status, int) else exit_codes.OK


def _add_groups(arguments: Sequence[str]) -> None:
    """Registers the requested verb or group only, because fewer imports start faster. For help, registers all."""
    first = arguments[0] if arguments else ""
    wanted = (first,) if first in (*_VERBS, *_GROUPS) else (*_VERBS, *_GROUPS)
    known = {each.name for each in app.registered_commands} | {each.name for each in app.registered_groups}
    for name in wanted:
        if name in known:
            continue
        room = "cluster." if name in OVER_NETWORK else ""
        module = import_module(f"penstock.cli.{room}{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))


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
