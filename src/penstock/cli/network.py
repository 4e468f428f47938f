"""What the verbs share that talk to a cluster: where it is, who asks, text or JSON.

    @over_network
    async def route(call: Call, topic: Topic) -> None:
        ...

A verb is a coroutine that gets a `Call`; `over_network` makes it a plain function with the common options behind its
own, and runs it. RocketMQ's `mqadmin` spells many options in its own way: those are names of the same options, too.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeAlias

import typer

from penstock.cli.options import AsJson
from penstock.cli.output import say
from penstock.client.admin import Admin
from penstock.client.config import ClientConfig, Credentials
from penstock.errors import BadSettings
from penstock.remoting.event_loop import run

P = ParamSpec("P")


class Truth(StrEnum):
    """`true` or `false`, as mqadmin's options have it; as true or false as it says."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Truth.TRUE


def named(*names: str, metavar: str, meaning: str, **more: Any) -> Any:
    """An option with several names, the first of which is the one to use."""
    return typer.Option(*names, metavar=metavar, help=meaning, show_default=False, **more)


def moment_of(text: str) -> int:
    """Epoch milliseconds of `now`, a number of them, an ISO time, or mqadmin's `2026-01-31#23:59:59:999`."""
    text = text.strip()
    if text == "now":
        return time.time_ns() // 1_000_000
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        if "#" in text:
            return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write now, milliseconds, 2026-01-31T23:59:59 or 2026-01-31#23:59:59:999"
        ) from None


def told(*names: str, meaning: str) -> Any:
    """An option that is followed by true or false."""
    return named(*names, metavar="true|false", meaning=meaning, case_sensitive=False)


Topic: TypeAlias = Annotated[str, named("--topic", "-t", metavar="T", meaning="The topic.")]
MaybeTopic: TypeAlias = Annotated[str | None, named("--topic", "-t", metavar="T", meaning="Only this topic.")]
Group: TypeAlias = Annotated[
    str, named("--group", "-g", "--groupName", "--consumerGroup", metavar="G", meaning="The consumer group.")
]
Cluster: TypeAlias = Annotated[
    str | None, named("--cluster", "-c", "--clusterName", metavar="C", meaning="Only the brokers of this cluster.")
]
Broker: TypeAlias = Annotated[
    str | None, named("--broker", "-b", "--brokerAddr", metavar="HOST:PORT", meaning="Only this broker.")
]

_NAMESRV: Final = named(
    "--namesrv", "-n", "--namesrvAddr", metavar="HOST:PORT;…", meaning="The name servers; NAMESRV_ADDR unless given."
)
_ACCOUNT: Final = named(
    "--account", metavar="FILE", meaning="A file with accessKey and secretKey, where access is controlled."
)
_TRUST: Final = named("--trust", metavar="FILE", meaning="Speak TLS, and trust these certificates (PEM).")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: its administrator's client, and in which form it answers."""

    admin: Admin
    config: ClientConfig
    as_json: bool


def over_network(verb: Callable[Concatenate[Call, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The verb as a command, with the common options."""

    @functools.wraps(verb)
    def command(
        *, namesrv: str | None, account: Path | None, trust: Path | None, as_json: bool, **options: Any
    ) -> None:
        config = ClientConfig(
            namesrv or "",
            credentials=None if account is None else read_account(account),
            tls=None if trust is None else {"tls.enable": "true", "tls.client.trustCertPath": str(trust)},
        )
        run(_call(verb, config, as_json, options))

    common = (
        ("namesrv", Annotated[str | None, _NAMESRV], None),
        ("account", Annotated[Path | None, _ACCOUNT], None),
        ("trust", Annotated[Path | None, _TRUST], None),
        ("as_json", AsJson, False),
    )
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in common
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


async def say_if_new(call: Call, topic: str) -> None:
    """Where a send may make topics, each has a route: who misspells one would not hear it otherwise."""
    if topic not in await call.admin.topics.names():
        say(f"no broker has topic {topic} yet; a send to it may make it. `penstock topic list` has those there are.")


async def _call(
    verb: Callable[..., Coroutine[Any, Any, None]], config: ClientConfig, as_json: bool, options: dict[str, Any]
) -> None:
    async with Admin(config) as admin:
        await verb(Call(admin, config, as_json), **options)


def read_account(path: Path) -> Credentials:
    """`accessKey: x` and `secretKey: y`, as in mqadmin's tools.yml; `=` does as well."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadSettings(
            f"the account cannot be read: {why}; check --account and who may read it", path=path
        ) from None
    pairs = (re.split(r"\s*[:=]\s*", line.strip(), maxsplit=1) for line in lines)
    found = {pair[0]: pair[1].strip("'\"") for pair in pairs if len(pair) == 2}
    if not found.get("accessKey") or not found.get("secretKey"):
        raise BadSettings("the account needs the lines accessKey: … and secretKey: …", path=path)
    return Credentials(found["accessKey"], found["secretKey"], found.get("securityToken"))
