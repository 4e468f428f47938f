"""What the options of `penstock serve` add up to: where to listen, what clients are told, and all settings."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings, BadStore
from penstock.namesrv import NamesrvSettings
from penstock.remoting.addresses import parse_address
from penstock.remoting.sockets import bind
from penstock.store import Settings
from penstock.store.files import Files
from penstock.store.geometry import fit_to_files
from penstock.store.layout import Layout

STORE: Final = Path("data/store")
HOST: Final = "127.0.0.1"
NAMESRV: Final = "127.0.0.1:9876"
OFF: Final = "off"

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address for documentation: asking for the way there sends nothing."""


def load_settings(
    folder: Path | None, config: Path | None, pairs: Sequence[str], *, dev: bool, register: str | None
) -> Settings:
    """The settings of store and broker. Raises BadSettings."""
    given = [*pairs] if register is None else [*pairs, f"namesrvAddr={register}"]
    settings = Settings.load(config, given, base=Settings.dev() if dev else None)
    if folder is not None:
        return settings.with_changes(store_path_root_dir=folder)
    if "store_path_root_dir" not in settings.given:
        return settings.with_changes(store_path_root_dir=STORE)
    return settings


def fitted(settings: Settings) -> Settings:
    """The settings with the file sizes of the store that is there already. Raises BadStore."""
    layout, files = Layout.of(settings.store_path_root_dir, settings), Files()
    if not settings.store_path_root_dir.is_dir():
        return settings
    found, problem = fit_to_files(settings, files, layout)
    if problem and settings.message_index_enable:
        raise BadStore(problem)
    return found


class Door:
    """The broker's port, taken before anything else is done, and the address that clients are told."""

    def __init__(self, listen: str | None, settings: Settings) -> None:
        """Raises BadSettings, or Unreachable if the port cannot be had."""
        self.host, port = (HOST, settings.listen_port) if listen is None else parse_address(listen, "--listen")
        self.bound = bind(self.host, port)
        self.address, self.port = self.bound.getsockname()[:2]
        told_port = settings.listen_port if listen and "listen_port" in settings.given else self.port
        told_ip = settings.broker_ip1 if "broker_ip1" in settings.given else _reachable(self.address)
        self.settings = settings.with_changes(broker_ip1=told_ip, listen_port=told_port)

    @property
    def is_open_to_others(self) -> bool:
        """Whether not only this machine can reach it."""
        return not ipaddress.ip_address(self.address).is_loopback


def _reachable(address: str) -> str:
    """An address that others can use: `address`, or if that means all of this machine's, the one on the way out."""
    ip = ipaddress.ip_address(address)
    if not ip.is_unspecified:
        return address
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(_ELSEWHERE)
        return str(asking.getsockname()[0])
    raise BadSettings(f"--listen {address} needs brokerIP1, the address that clients are told; this machine has none")


def namesrv_settings(settings: Settings, broker: BrokerSettings) -> NamesrvSettings:
    """What the embedded name server goes by: the broker's settings, and a file in the store's folder."""
    return NamesrvSettings(
        auto_create_topic_enable=broker.auto_create_topic_enable,
        kv_config_path=settings.store_path_root_dir / "penstock" / "kvConfig.json",
        register_broker_from=broker.register_broker_from,
        server_channel_max_idle_time_seconds=broker.server_channel_max_idle_time_seconds,
        tls={name: text for name, text in settings.broker.items() if name.startswith("tls.")},
    )
