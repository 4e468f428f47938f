"""The brokers of `penstock serve --brokers N`: their names, ports and stores, derived from one set of options.

Broker number i listens 10 * i above the first one's port. That leaves room for RocketMQ's ports around each: 2 below
(its old clients), 1 above (slaves), and Penstock's 2 above (metrics and health). The stores are folders in `--store`,
each with the name of its broker. Everything is checked before a process is started; nothing is created here.
"""

from __future__ import annotations

import ipaddress
import string
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.replication.replication import listens
from penstock.broker.settings import BrokerSettings, observe_address
from penstock.cli.broker_process import HOST, MAX_PORT, OBSERVE_ABOVE, ServeOptions
from penstock.cli.console_child import OFF
from penstock.errors import BadSettings, Unreachable
from penstock.remoting.sockets import bind, parse_address
from penstock.store import Settings
from penstock.store.files.layout import Layout
from penstock.store.readonly.store_folder import is_store, stores_in
from penstock.store.settings import BrokerRole

STRIDE: Final = 10
MAX_BROKERS: Final = len(string.ascii_lowercase)
OBSERVE_ALL_ABOVE: Final = 3
"""The port for the health of all is by default so much above the first broker's port."""


class PlannedBroker(NamedTuple):
    """One of the brokers."""

    name: str
    store: Path
    host: str
    port: int
    advertised_port: int
    ha_port: int | None
    """None if it has no port for slaves."""
    observe: str | None
    """None: 2 above its port, if that is free."""

    @property
    def listen(self) -> str:
        return _text(self.host, self.port)

    @property
    def observe_shown(self) -> str:
        """The address for metrics and health as people read it."""
        return self.observe or f"{OBSERVE_ABOVE} above its port"

    def shown(self) -> dict[str, str]:
        """Returns its addresses and its store, by what they are."""
        ha = {} if self.ha_port is None else {"slaves": str(self.ha_port)}
        return {
            "name": self.name,
            "listen": self.listen,
            **ha,
            "observe": self.observe_shown,
            "store": str(self.store),
        }

    def arguments(self) -> list[str]:
        """Returns the options of this broker's process that differ from broker to broker."""
        ha = [] if self.ha_port is None else [f"--set=haListenPort={self.ha_port}"]
        observe = [] if self.observe is None else [f"--observe-port={self.observe}"]
        return [
            f"--store={self.store}",
            f"--listen={self.listen}",
            f"--set=brokerName={self.name}",
            f"--set=listenPort={self.advertised_port}",
            *ha,
            *observe,
        ]


def plan_brokers(options: ServeOptions, count: int) -> list[PlannedBroker]:
    """Returns the brokers, the first one first. Raises BadSettings for options that several brokers cannot share."""
    settings = options.settings
    of_broker = BrokerSettings.of(settings)
    _check_shared(settings, of_broker, options, count)
    host, base = (HOST, settings.listen_port) if options.listen is None else parse_address(options.listen, "--listen")
    observed = options.observe_port if options.observe_port is not None else of_broker.observe_port
    ports = _free_ports(host, count) if base == 0 else [base + STRIDE * number for number in range(count)]
    if ports[-1] + OBSERVE_ALL_ABOVE > MAX_PORT:
        raise BadSettings(f"port {base} is too high for {count} brokers, {STRIDE} apart; choose a lower one")
    plans = []
    for number, (name, port) in enumerate(zip(names(of_broker.broker_name, count), ports, strict=True)):
        advertised = port
        if options.listen is not None and "listen_port" in settings.given:
            advertised = settings.listen_port + STRIDE * number
        plans.append(
            PlannedBroker(
                name=name,
                store=settings.store_path_root_dir / name,
                host=host,
                port=port,
                advertised_port=advertised,
                ha_port=settings.ha_listen_port + STRIDE * number
                if listens(settings.broker_role, settings, of_broker)
                else None,
                observe=_observe(observed, port, is_chosen=base != 0),
            )
        )
    return plans


def _check_shared(settings: Settings, broker: BrokerSettings, options: ServeOptions, count: int) -> None:
    if not 1 <= count <= MAX_BROKERS:
        raise BadSettings(f"--brokers is {count}; it must be 1 to {MAX_BROKERS}")
    if settings.store_path_commit_log is not None:
        raise BadSettings("storePathCommitLog names one folder, and --brokers needs one for each; leave it out")
    if settings.broker_role is BrokerRole.SLAVE or broker.broker_id != 0:
        raise BadSettings(
            "--brokers starts masters, and brokerRole or brokerId asks for a slave; start each slave by itself"
        )
    if options.namesrv == OFF and not broker.name_servers:
        raise BadSettings("--brokers needs a name server: leave out --namesrv off, or name others with --register")


def names(first: str, count: int) -> list[str]:
    """Returns the names of brokers: broker-a, broker-b, ...; the letter is added if `first` does not end in -a."""
    stem = first.removesuffix("-a")
    return [f"{stem}-{letter}" for letter in string.ascii_lowercase[:count]]


def _observe(given: str | None, port: int, *, is_chosen: bool) -> str | None:
    """Returns a broker's option --observe-port; None: its default."""
    if given is None:
        return None if is_chosen else "0"
    address = observe_address(given, "--observe-port")
    return OFF if address is None else _text(address[0], port + OBSERVE_ABOVE if is_chosen else 0)


def _free_ports(host: str, count: int) -> list[int]:
    """Returns free ports, which the brokers keep when they are started again."""
    with ExitStack() as sockets:
        return [sockets.enter_context(bind(host, 0)).getsockname()[1] for _ in range(count)]


def own_host(host: str) -> str:
    """Returns `host` if it is a loopback address, else 127.0.0.1: where only this machine can ask."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return host
    return HOST


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- ports ---------------------------------------------------------------------------------------------------------


def check_ports(plans: Sequence[PlannedBroker], others: dict[str, int]) -> None:
    """Raises BadSettings if two brokers, or a broker and one of `others`, have the same port; Unreachable if another
    process has it. `others` are ports by option.
    """
    taken = {port: option for option, port in others.items() if port}
    for plan in plans:
        for what, port in _ports(plan):
            if port in taken:
                raise BadSettings(
                    f"{plan.name} needs port {port} ({what}), which is that of {taken[port]}; choose another --listen"
                )
            taken[port] = f"{plan.name} ({what})"
    for plan in plans:
        try:
            bind(plan.host, plan.port).close()
        except Unreachable as error:
            raise Unreachable(f"{plan.name} needs its own port: {error}") from None


def _ports(plan: PlannedBroker) -> Iterator[tuple[str, int]]:
    yield "clients", plan.port
    if plan.ha_port is not None:
        yield "slaves", plan.ha_port


# -- stores --------------------------------------------------------------------------------------------------------


def check_single_store(folder: Path) -> None:
    """Raises BadSettings if `folder` holds the stores of several brokers, and one broker is to be started there."""
    if inside := stores_in(folder):
        found = ", ".join(path.name for path in inside)
        raise BadSettings(
            f"{folder} holds the stores of several brokers ({found}): start it with --brokers {len(inside)}, or one of "
            f"them with --store {inside[0]}"
        )


def check_stores(settings: Settings, plans: Sequence[PlannedBroker], *, leave_out: bool) -> list[Path]:
    """Returns the stores in the folder that no broker would serve. Raises BadSettings if the folder is a store itself,
    or if a store that has messages would not be served, unless `leave_out`.
    """
    folder = settings.store_path_root_dir
    if is_store(folder):
        raise BadSettings(
            f"{folder} is the store of one broker, and --brokers needs a folder of stores: choose another --store, or "
            f"move this store to the place of the first one, {plans[0].name} in a new folder"
        )
    served = {plan.name for plan in plans}
    others = [path for path in stores_in(folder) if path.name not in served]
    full = [path for path in others if has_messages(path, settings)]
    if full and not leave_out:
        listed, count = ", ".join(path.name for path in full), len(stores_in(folder))
        raise BadSettings(
            f"{folder} has messages in {listed}, which --brokers {len(plans)} would not serve: start it with --brokers "
            f"{max(count, len(plans))}, or with --leave-out if these messages are not needed"
        )
    return others


def has_messages(folder: Path, settings: Settings) -> bool:
    """Whether a store's log has a record. The store is not opened. Raises OSError if the log cannot be read."""
    with suppress(FileNotFoundError):
        for path in Layout.of(folder, settings).commit_log.iterdir():
            with path.open("rb") as file:
                if file.read(_HEAD).strip(b"\0"):
                    return True
    return False


_HEAD: Final = 4096
