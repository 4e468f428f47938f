"""The group `penstock context`: a cluster's address, account and trusted certificates under a name.

They are in `penstock/contexts.json` in $XDG_CONFIG_HOME, by default ~/.config. The file holds the path of an account,
never its secret. It is written as a new file that replaces the old one. `Contexts` is its only reader and writer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.confirmation import Yes
from penstock.cli.options import AsJson, VerbGroup, help_if_alone, option
from penstock.cli.output import add_row, show, table, write, write_json
from penstock.cli.suggestions import did_you_mean
from penstock.errors import BadSettings
from penstock.format.msgspec_warm_up import prepared

VARIABLE: Final = "PENSTOCK_CONTEXT"
_MAX_BYTES: Final = 1 << 20
app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)


class ClusterContext(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to reach one cluster. Paths are absolute."""

    namesrv: str = ""
    account: str = ""
    trust: str = ""


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """All contexts by name, and the name of the current one; empty if there is none."""

    current: str = ""
    contexts: dict[str, ClusterContext] = {}  # msgspec copies an empty default

    @staticmethod
    def path() -> Path:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "penstock" / "contexts.json"

    @classmethod
    def load(cls) -> Contexts:
        """Reads the file; a missing one has no contexts. Raises BadSettings if it cannot be read."""
        path = cls.path()
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise BadSettings(f"the contexts cannot be read: {error.strerror}; check its owner", path=path) from None
        try:
            if len(text) > _MAX_BYTES:
                raise ValueError(f"it has more than {_MAX_BYTES} bytes")
            return msgspec.json.decode(text, type=prepared(cls))
        except ValueError as error:  # also msgspec's errors
            raise BadSettings(f"the contexts cannot be read: {error}; correct or remove the file", path=path) from None

    def save(self) -> None:
        """Writes the file, readable by its owner only."""
        path = self.path()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.tmp")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def get(self, name: str) -> ClusterContext:
        """Returns a context. Raises BadSettings if it does not exist."""
        if name not in self.contexts:
            raise BadSettings(
                f"there is no context '{name}'; {did_you_mean(name, self.contexts, 'penstock context list')}"
            )
        return self.contexts[name]


def effective_context(name: str | None, *, has_address: bool) -> ClusterContext:
    """Returns the context that applies: the named one, that of PENSTOCK_CONTEXT, or the current one.

    `has_address` says that an address is given in another way; then only a named context applies, because an account
    must not be sent to another cluster. Raises BadSettings.
    """
    name = name or os.environ.get(VARIABLE) or None
    if name is None and has_address:
        return ClusterContext()
    contexts = Contexts.load()
    if name is not None:
        return contexts.get(name)
    return contexts.get(contexts.current) if contexts.current else ClusterContext()


# -- verbs --

ContextName = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)]


@app.callback(invoke_without_command=True)
def context(context: typer.Context) -> None:
    """Addresses and accounts of clusters, by name.

    The current context applies to all verbs that talk to a cluster, unless --context, --namesrv or NAMESRV_ADDR is
    given.

    Examples:

    \b
      penstock context set prod --namesrv 10.0.0.1:9876 --account tools.yml --trust ca.pem
      penstock context use prod
    """
    help_if_alone(context)


@app.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """List all contexts; the current one is marked with a star.

    Examples:

    \b
      penstock context list
    """
    found = Contexts.load()
    if as_json:
        write_json(
            [
                {"name": name, "current": name == found.current, **msgspec.structs.asdict(each)}
                for name, each in sorted(found.contexts.items())
            ]
        )
        return
    shown = table("", "", "name", "name servers", "account", "trust")
    for name, each in sorted(found.contexts.items()):
        add_row(shown, "*" if name == found.current else "", name, each.namesrv, each.account, each.trust)
    show(shown)


@app.command("set")
def set_context(
    name: ContextName,
    namesrv: Annotated[str | None, option("--namesrv", "HOST:PORT;…", "The name servers.")] = None,
    account: Annotated[Path | None, option("--account", "FILE", "A file with accessKey and secretKey.")] = None,
    trust: Annotated[Path | None, option("--trust", "FILE", "Use TLS, and trust these certificates (PEM).")] = None,
) -> None:
    """Create a context, or change the given parts of one. An empty value removes a part.

    The address and the files are checked. The first context becomes the current one.

    Examples:

    \b
      penstock context set prod --namesrv 10.0.0.1:9876 --account tools.yml --trust ca.pem
    """
    from penstock.cli.cluster_connection import client_config

    if not name.strip() or not name.isprintable():
        raise typer.BadParameter(f"'{name}' must have printable characters, to be the name of a context")
    found = Contexts.load()
    given = {
        "namesrv": namesrv,
        "account": None if account is None else _absolute(account),
        "trust": None if trust is None else _absolute(trust),
    }
    changes = {part: value for part, value in given.items() if value is not None}
    changed = msgspec.structs.replace(found.contexts.get(name, ClusterContext()), **changes)
    if not changed.namesrv:
        raise typer.BadParameter("a context needs --namesrv")
    client_config(
        changed.namesrv,
        Path(changed.account) if changed.account else None,
        Path(changed.trust) if changed.trust else None,
    )
    found.contexts[name] = changed
    found.current = found.current or name
    found.save()
    write(f"set context {name}{' (current)' if found.current == name else ''}\n")


def _absolute(path: Path) -> str:
    return "" if path == Path() else str(path.expanduser().absolute())


@app.command()
def use(name: ContextName) -> None:
    """Make a context the current one.

    Examples:

    \b
      penstock context use prod
    """
    found = Contexts.load()
    found.get(name)
    found.current = name
    found.save()
    write(f"using context {name}: {found.contexts[name].namesrv}\n")


@app.command()
def delete(name: ContextName, yes: Yes = False) -> None:
    """Delete a context. The files that it names stay.

    Examples:

    \b
      penstock context delete prod
    """
    from penstock.cli.confirmation import confirm
    from penstock.remoting.event_loop import run

    found = Contexts.load()
    found.get(name)
    run(confirm(f"Delete context {name}?", yes))
    del found.contexts[name]
    if found.current == name:
        found.current = ""
    found.save()
    write(f"deleted context {name}\n")
