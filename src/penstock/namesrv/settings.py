"""The name server's settings: one frozen, typed object with RocketMQ's names.

    NamesrvSettings()
    NamesrvSettings.load("namesrv.conf", ["listenPort=9877"])

An object that exists is valid; every refusal is a `BadSettings` of one sentence. The reference page is made from this
table: `python -m penstock.namesrv.setting_page > docs/reference/namesrv-settings.md`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from penstock.errors import BadSettings
from penstock.namesrv.access import LocalRule
from penstock.remoting.limits import Limits
from penstock.remoting.tls import SERVER_NAMES, ServerTls, server_tls
from penstock.store.java_properties import format_property, parse_properties
from penstock.store.setting_spec import Origin, Section, Spec, spec_of

ROUTES = Section("Routes")
NETWORK = Section("Network")
OURS = Section("Penstock's own", origin=Origin.PENSTOCK)

_IDLE: Final = (
    "rocketmqHome configStorePath productEnvName clusterTest serverWorkerThreads serverCallbackExecutorThreads "
    "serverSelectorThreads serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize "
    "serverSocketRcvBufSize serverPooledByteBufAllocatorEnable useEpollNativeSelector"
)
WITHOUT_EFFECT: Final = frozenset(_IDLE.split())
"""RocketMQ's names that are accepted and do nothing: they tune Java's threads and buffers, or name its folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The values, unchecked."""

    order_message_enable: Annotated[
        bool, ROUTES("a route tells what the KV namespace `ORDER_TOPIC_CONFIG` says about its topic")
    ] = True
    kv_config_path: Annotated[
        Path | None, ROUTES("the file of the KV configuration; without one it lasts as long as the process")
    ] = None
    listen_port: Annotated[int, NETWORK("port; 0 is any that is free", high=65535)] = 9876
    server_channel_max_idle_time_seconds: Annotated[int, NETWORK("a connection without a byte is closed", low=1)] = 120
    auto_create_topic_enable: Annotated[
        bool, OURS("a legal topic that nobody has gets the route that a send would give it, where brokers offer TBW102")
    ] = True
    broker_expire_seconds: Annotated[int, OURS("a broker that has not registered for so long is forgotten", low=1)] = (
        120
    )
    register_broker_from: Annotated[
        str, OURS("where brokers may register from: `loopback`, `any`, or networks joined by `,`")
    ] = "loopback"


def _specs() -> dict[str, Spec]:
    hints = get_type_hints(_Table, include_extras=True)
    return {each.name: spec_of(each.name, hints[each.name], each.default) for each in fields(_Table)}


SPECS: Final[dict[str, Spec]] = _specs()
"""By attribute, in the order of the table."""
BY_NAME: Final[dict[str, Spec]] = {spec.name: spec for spec in SPECS.values()}

CHANGEABLE: Final = ("orderMessageEnable", "autoCreateTopicEnable", "brokerExpireSeconds")
"""What may be changed over the network: nothing that is a path, an address or a right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvSettings(_Table):
    """RocketMQ's settings of a name server that mean something here, and a few of Penstock's own."""

    tls: Mapping[str, str] = field(default_factory=dict, hash=False)
    """RocketMQ's `tls.server.…` properties that were given."""
    ignored: tuple[str, ...] = field(default=(), compare=False)
    """Names that were given and do nothing."""

    def __post_init__(self) -> None:
        for spec in SPECS.values():
            object.__setattr__(self, spec.attribute, spec.check(getattr(self, spec.attribute)))
        LocalRule(self.register_broker_from)  # refuses what is no network

    @classmethod
    def load(cls, conf_path: str | Path | None = None, pairs: Iterable[str] = ()) -> NamesrvSettings:
        """The defaults, changed by a file in Java's properties syntax, then by `name=value` texts; later ones win."""
        texts: dict[str, str] = {}
        if conf_path is not None:
            texts |= _read_file(Path(conf_path))
        for pair in pairs:
            name, equals, text = pair.partition("=")
            if not equals or not name.strip():
                raise BadSettings(f"'{pair}' is not a setting; write name=value")
            texts[name.strip()] = text.strip()
        return cls().changed_by(texts)

    def changed_by(self, texts: Mapping[str, str]) -> NamesrvSettings:
        """A copy with settings from texts, by RocketMQ's names. Raises BadSettings."""
        changes: dict[str, Any] = {}
        for name, text in texts.items():
            if name in BY_NAME:
                changes[BY_NAME[name].attribute] = BY_NAME[name].parse(text)
            elif name not in SERVER_NAMES and name not in WITHOUT_EFFECT:
                raise BadSettings(f"unknown setting '{name}'{_nearest(name)}")
        tls = {**self.tls, **{name: text for name, text in texts.items() if name in SERVER_NAMES}}
        ignored = (*self.ignored, *(name for name in texts if name in WITHOUT_EFFECT))
        return replace(self, **changes, tls=tls, ignored=ignored)

    @property
    def limits(self) -> Limits:
        return Limits(idle_s=float(self.server_channel_max_idle_time_seconds))

    @property
    def server_tls(self) -> ServerTls:
        """Raises BadSettings if the certificates cannot be used."""
        return server_tls(self.tls)

    def notes(self) -> list[str]:
        """A sentence for each setting that was given and does nothing."""
        return [
            f"{name} has no effect: it tunes Java's threads and buffers, or names its folders." for name in self.ignored
        ]

    def to_properties(self) -> str:
        """All settings in Java's properties syntax."""
        return "".join(
            format_property(spec.name, spec.show(getattr(self, spec.attribute))) + "\n" for spec in SPECS.values()
        )


def _read_file(path: Path) -> dict[str, str]:
    try:
        return {entry.name: entry.value for entry in parse_properties(path.read_bytes())}
    except OSError as error:
        raise BadSettings(
            f"cannot read the settings: {error.strerror}; check the path and who may read it", path=path
        ) from error
    except ValueError as error:
        raise BadSettings(str(error), path=path) from error


def _nearest(name: str) -> str:
    known = {each.lower(): each for each in sorted({*BY_NAME, *SERVER_NAMES, *WITHOUT_EFFECT})}
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean '{known[close[0]]}'?" if close else "; no known setting has a name like it"
