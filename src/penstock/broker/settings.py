"""The broker's settings: one frozen, typed object with RocketMQ's names and defaults.

    BrokerSettings()                                       RocketMQ 4.9.8's defaults
    BrokerSettings.of(Settings.load("broker.conf", ["brokerName=broker-b"]))

The store's `Settings` reads broker.conf and `--set name=value` and keeps the texts that are the broker's; `of` gives
them their meaning. An object that exists is valid; every refusal is a `BadSettings` of one sentence. Immutable;
`SettingsInForce` is the one place that says which object counts now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.broker.setting_table import BY_NAME, SPECS, WITHOUT_EFFECT, BrokerSettingTable
from penstock.format.topics import is_legal_topic
from penstock.remoting.addresses import parse_address
from penstock.store.setting_spec import EffectKind
from penstock.store.settings import Settings

_REGISTER_SECONDS = (10_000, 60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(BrokerSettingTable):
    """RocketMQ's settings of a broker, and a few of Penstock's own."""

    given: frozenset[str] = field(default=frozenset(), compare=False)
    """RocketMQ's names of what was given, whatever the value."""

    def __post_init__(self) -> None:
        for spec in SPECS.values():
            object.__setattr__(self, spec.attribute, spec.check(getattr(self, spec.attribute)))
        for attribute in ("broker_name", "broker_cluster_name", "msg_trace_topic_name"):
            if not is_legal_topic(getattr(self, attribute)):  # a topic has this name
                allowed = "letters, digits, '%', '|', '_' and '-', at most 127"
                raise SPECS[attribute].wrong(getattr(self, attribute), allowed)
        for address in self.name_servers:
            parse_address(address, "namesrvAddr")
        lowest, highest = _REGISTER_SECONDS
        period = min(max(self.register_name_server_period, lowest), highest)
        object.__setattr__(self, "register_name_server_period", period)

    @classmethod
    def of(cls, settings: Settings) -> BrokerSettings:
        """What a broker.conf, or `--set`, said about the broker. Raises BadSettings."""
        known = {name: text for name, text in settings.broker.items() if name in BY_NAME}
        values = {BY_NAME[name].attribute: BY_NAME[name].parse(text) for name, text in known.items()}
        return cls(**values, given=frozenset(settings.broker))

    def with_changes(self, **changes: Any) -> BrokerSettings:
        """A copy with these attributes changed."""
        return replace(self, **changes)

    @property
    def name_servers(self) -> list[str]:
        """The name servers to register with, besides the embedded one."""
        return [address.strip() for address in (self.namesrv_addr or "").split(";") if address.strip()]

    @property
    def is_writable(self) -> bool:
        return self.broker_permission & 2 != 0

    @property
    def is_readable(self) -> bool:
        return self.broker_permission & 4 != 0

    def notes(self) -> list[str]:
        """A sentence for each setting that was given and does not do what it says."""
        notes = [f"{name} has no effect: {WITHOUT_EFFECT[name]}." for name in sorted(self.given & set(WITHOUT_EFFECT))]
        for spec in SPECS.values():
            effect = spec.about.effect
            if spec.name in self.given and effect.kind is not EffectKind.HONOURED:
                notes.append(f"{spec.name} has no effect: {effect.why}.")
        return notes


class SettingsInForce:
    """Which settings count now. Concerns keep this and ask it each time, so that a change reaches all of them."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.now = settings
        self.on_change: list[Callable[[BrokerSettings], None]] = []

    def change(self, **changes: Any) -> None:
        """Puts a changed object in force. Raises BadSettings, and then nothing has changed."""
        self.now = self.now.with_changes(**changes)
        for changed in self.on_change:
            changed(self.now)
