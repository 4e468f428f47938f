"""The name server's settings: one frozen, typed object with RocketMQ's names.

    NamesrvSettings()
    NamesrvSettings.load("namesrv.conf", ["listenPort=9877"])

The constructor validates: an invalid value raises BadSettings with one sentence. Update the reference page with
`python -m penstock.config.reference_pages docs/reference/namesrv-settings.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from penstock.config.ignored_settings import IGNORED, ignored_note
from penstock.config.java_properties import format_property
from penstock.config.setting_parser import Origin, Section, SettingTable
from penstock.namesrv.access import LocalRule
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.tls import SERVER_NAMES, ServerTls, server_tls

ROUTES = Section("Routes")
NETWORK = Section("Network")
OURS = Section("Penstock's own", Origin.PENSTOCK)

CHANGEABLE: Final = ("orderMessageEnable", "autoCreateTopicEnable", "brokerExpireSeconds")
"""Settings that may be changed over the network: no paths, addresses or permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvSettings:
    """RocketMQ's name server settings that have an effect here, and a few of Penstock's own."""

    order_message_enable: Annotated[
        bool, ROUTES("routes include the topic's entry in the KV namespace `ORDER_TOPIC_CONFIG`")
    ] = True
    kv_config_path: Annotated[
        Path | None, ROUTES("file of the KV configuration; if unset, it is kept in memory only")
    ] = None
    listen_port: Annotated[int, NETWORK("port; 0 picks a free one", high=65535)] = 9876
    server_channel_max_idle_time_seconds: Annotated[
        int, NETWORK("idle time after which a connection is closed", low=1)
    ] = 120
    auto_create_topic_enable: Annotated[
        bool,
        OURS("a legal topic that does not exist gets the route that a send would create, where brokers offer TBW102"),
    ] = True
    broker_expire_seconds: Annotated[int, OURS("a broker that has not registered for this long is dropped", low=1)] = (
        120
    )
    register_broker_from: Annotated[
        str, OURS("where brokers may register from: `loopback`, `any`, or networks joined by `,`")
    ] = "loopback"

    tls: Mapping[str, str] = field(default_factory=dict, hash=False)
    """RocketMQ's `tls.server.…` properties that were given."""
    ignored: tuple[str, ...] = field(default=(), compare=False)
    """The names of given settings that have no effect."""

    def __post_init__(self) -> None:
        TABLE.check(self)
        LocalRule(self.register_broker_from)  # raises if the value is not a list of networks

    @classmethod
    def load(cls, conf_path: str | Path | None = None, pairs: Iterable[str] = ()) -> NamesrvSettings:
        """Returns the defaults, overridden by a file in Java's properties syntax, then by `name=value` pairs.

        Of two pairs with the same name, the later one counts. Raises BadSettings.
        """
        values, texts = TABLE.read(conf_path, pairs)
        tls = {name: text for name, text in texts.items() if name in SERVER_NAMES}
        return cls(**values, tls=tls, ignored=tuple(name for name in texts if name in IGNORED))

    def changed_by(self, texts: Mapping[str, str]) -> NamesrvSettings:
        """Returns a copy with the values in `texts`, which are keyed by RocketMQ's names. Raises BadSettings."""
        return replace(self, **TABLE.parse(texts))

    @property
    def limits(self) -> ConnectionLimits:
        return ConnectionLimits(idle_s=float(self.server_channel_max_idle_time_seconds))

    @property
    def server_tls(self) -> ServerTls:
        """The server's TLS settings. Raises BadSettings if the certificates cannot be used."""
        return server_tls(self.tls)

    def notes(self) -> list[str]:
        """Returns a sentence about the given settings that have no effect; an empty list if there are none."""
        return ignored_note(self.ignored)

    def to_properties(self) -> str:
        """Returns all settings in Java's properties syntax."""
        return "".join(f"{format_property(name, text)}\n" for name, text in TABLE.texts(self).items())


TABLE: Final = SettingTable(NamesrvSettings, kept=SERVER_NAMES)
