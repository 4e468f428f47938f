"""The common parts of the verbs that talk to a cluster: name servers, credentials, TLS, text or JSON output.

    @over_network
    async def route(call: Call, topic: Topic) -> None:
        ...

A verb is a coroutine function whose first parameter is a `Call`. `over_network` turns it into a command that has the
verb's own options, then the common ones. mqadmin's option names are aliases of Penstock's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeAlias, cast

import typer

from penstock.cli.cluster_contexts import effective_context
from penstock.cli.options import AsJson, CommonOption, Name, with_common_options
from penstock.cli.output import write_note
from penstock.cli.suggestions import did_you_mean
from penstock.client.admin import Admin
from penstock.client.config import ClientConfig, Credentials
from penstock.errors import BadSettings, PenstockError
from penstock.human_units import parse_time
from penstock.remoting.event_loop import run

P = ParamSpec("P")
IGNORED: Final = "Accepted for mqadmin compatibility; ignored."


class Truth(StrEnum):
    """The value of an mqadmin option that takes `true` or `false`."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Truth.TRUE


def named(*names: str, metavar: str, meaning: str, **more: Any) -> Any:
    """Returns an option with several names. The first is Penstock's name, the others are aliases."""
    return typer.Option(*names, metavar=metavar, help=meaning, show_default=False, **more)


def parse_moment(text: str) -> int:
    """Returns epoch milliseconds: what `parse_time` takes, and mqadmin's `2026-01-31#23:59:59:999` and -1."""
    text = text.strip()
    try:
        if text == "-1":
            return -1
        if "#" in text:
            return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)
        return parse_time(text)
    except ValueError:
        raise typer.BadParameter(
            f"not a valid time: {text!r}; write now, now-1h, milliseconds, 2026-01-31T23:59:59 or "
            "2026-01-31#23:59:59:999"
        ) from None


def boolean(*names: str, meaning: str) -> Any:
    """Returns an option that takes true or false."""
    return named(*names, metavar="true|false", meaning=meaning, case_sensitive=False)


# -- completion of names by the shell --

_COMPLETION_S: Final = 1.0


def _complete_topic(incomplete: str) -> list[str]:
    """Returns the topics that begin so, without those of the system unless a prefix is typed."""
    names = _names_for_shell(lambda admin: admin.topics.names())
    return [name for name in names if name.startswith(incomplete) and (incomplete or not name.startswith("%"))]


def _complete_group(incomplete: str) -> list[str]:
    return [name for name in _names_for_shell(lambda admin: admin.groups.configs()) if name.startswith(incomplete)]


def _names_for_shell(ask: Callable[[Admin], Coroutine[Any, Any, Iterable[str]]]) -> list[str]:
    """Asks the cluster of the context or NAMESRV_ADDR. Returns nothing if it does not answer within a second."""

    async def names() -> list[str]:
        config = replace(
            cluster_config(None, None, None, None), timeout_s=_COMPLETION_S, connect_timeout_s=_COMPLETION_S
        )
        async with Admin(config) as admin:
            return list(await ask(admin))

    try:
        return run(names())
    except (PenstockError, OSError):
        return []


# -- options --

Topic: TypeAlias = Annotated[
    str,
    named("--topic", "-t", metavar="T", meaning="The topic.", autocompletion=_complete_topic),
    Name("TOPIC"),
]
MaybeTopic: TypeAlias = Annotated[str | None, named("--topic", "-t", metavar="T", meaning="Only this topic.")]
Group: TypeAlias = Annotated[
    str,
    named(
        "--group",
        "-g",
        "--groupName",
        "--consumerGroup",
        metavar="G",
        meaning="The consumer group.",
        autocompletion=_complete_group,
    ),
    Name("GROUP"),
]
Cluster: TypeAlias = Annotated[
    str | None, named("--cluster", "-c", "--clusterName", metavar="C", meaning="Only the brokers of this cluster.")
]
Broker: TypeAlias = Annotated[
    str | None, named("--broker", "-b", "--brokerAddr", metavar="HOST:PORT", meaning="Only this broker.")
]

_NAMESRV: Final = named(
    "--namesrv", "-n", "--namesrvAddr", metavar="HOST:PORT;…", meaning="The name servers; default: NAMESRV_ADDR."
)
_CONTEXT: Final = named("--context", metavar="NAME", meaning="The cluster of this context; see `penstock context`.")
_ACCOUNT: Final = named(
    "--account", metavar="FILE", meaning="A file with accessKey and secretKey, for a cluster with aclEnable."
)
_TRUST: Final = named("--trust", metavar="FILE", meaning="Use TLS, and trust these certificates (PEM).")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: the admin client, its configuration, and the output format."""

    admin: Admin
    config: ClientConfig
    as_json: bool


_COMMON: Final[tuple[CommonOption, ...]] = (
    ("namesrv", Annotated[str | None, _NAMESRV], None),
    ("context", Annotated[str | None, _CONTEXT], None),
    ("account", Annotated[Path | None, _ACCOUNT], None),
    ("trust", Annotated[Path | None, _TRUST], None),
    ("as_json", AsJson, False),
)


def over_network(verb: Callable[Concatenate[Call, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turns the verb into a command with the common options."""

    async def call(config: ClientConfig, as_json: bool, own: dict[str, Any]) -> None:
        async with Admin(config) as admin:
            await cast("Callable[..., Coroutine[Any, Any, None]]", verb)(Call(admin, config, as_json), **own)

    def invoke(common: dict[str, Any], own: dict[str, Any]) -> None:
        config = cluster_config(common["context"], common["namesrv"], common["account"], common["trust"])
        run(call(config, common["as_json"], own))

    return with_common_options(verb, _COMMON, invoke)


def cluster_config(context: str | None, namesrv: str | None, account: Path | None, trust: Path | None) -> ClientConfig:
    """Returns the client configuration: what the options give, the rest from the context. Raises BadSettings."""
    there = effective_context(context, has_address=bool(namesrv or os.environ.get("NAMESRV_ADDR")))
    return client_config(
        namesrv or there.namesrv,
        account or (Path(there.account) if there.account else None),
        trust or (Path(there.trust) if there.trust else None),
    )


def client_config(namesrv: str | None, account: Path | None, trust: Path | None) -> ClientConfig:
    """Returns the client configuration for the options' values. Raises BadSettings."""
    return ClientConfig(
        namesrv or "",
        credentials=None if account is None else read_account(account),
        tls=None if trust is None else {"tls.enable": "true", "tls.client.trustCertPath": str(trust)},
    )


async def check_topic_exists(call: Call, topic: str, *, cluster: str | None = None) -> None:
    """Raises BadSettings if no broker, or no broker of the cluster, has the topic.

    With autoCreateTopicEnable every name has a route, even a misspelt one.
    """
    names = await call.admin.topics.names(cluster)
    if topic not in names:
        where = "" if cluster is None else f" of cluster '{cluster}'"
        raise BadSettings(f"no broker{where} has topic '{topic}'; {did_you_mean(topic, names, 'penstock topic list')}")


async def check_group_exists(call: Call, group: str, *, cluster: str | None = None, broker: str | None = None) -> None:
    """Raises BadSettings if no broker knows the consumer group."""
    names = await call.admin.groups.configs(cluster=cluster, broker=broker)
    if group not in names:
        raise BadSettings(f"no broker knows group '{group}'; {did_you_mean(group, names, 'penstock group list')}")


async def note_if_missing(call: Call, topic: str) -> None:
    """Prints a note to stderr if a topic does not exist.

    With autoCreateTopicEnable every name has a route, even a misspelt one.
    """
    if topic not in await call.admin.topics.names():
        write_note(f"no broker has topic {topic} yet; a send may create it. `penstock topic list` lists the topics.")


def read_account(path: Path) -> Credentials:
    """Reads `accessKey: x` and `secretKey: y` from a file such as mqadmin's tools.yml. Also accepts `=` for `:`. Raises
    BadSettings.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadSettings(
            f"the account cannot be read: {why}; check --account and the file's permissions", path=path
        ) from None
    pairs = (re.split(r"\s*[:=]\s*", line.strip(), maxsplit=1) for line in lines)
    values = {pair[0]: pair[1].strip("'\"") for pair in pairs if len(pair) == 2}
    if not values.get("accessKey") or not values.get("secretKey"):
        raise BadSettings("the account needs the lines accessKey: … and secretKey: …", path=path)
    return Credentials(values["accessKey"], values["secretKey"], values.get("securityToken"))
