"""The process of `penstock serve`: a broker, a name server and a store, with the web console as a child process.

The command binds the ports first, so that a port in use is reported at once. Then it answers metrics and health on a
port of their own, and opens and recovers the store. Then it starts both servers. SIGTERM, Ctrl-C or the end of the
terminal stops them within stopLimitMillis; a second signal ends the process at once. Log lines go to stderr, as text or
JSON, and never contain a body or a secret.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from penstock import __version__
from penstock.broker.access import Access
from penstock.broker.broker import Broker
from penstock.broker.metrics_and_health import Observation
from penstock.broker.operations_as_plain_calls import host_text
from penstock.broker.remoting.signatures import Signatures
from penstock.broker.settings import BrokerSettings, observe_address
from penstock.cli import exit_codes
from penstock.cli.brokers.link_from_broker_to_supervisor import SupervisorLink, inherited_link
from penstock.cli.configuration import shown_settings
from penstock.cli.console_child import OFF, ConsoleChild
from penstock.cli.log_output import LogFormat, LogLevel, log_uncaught
from penstock.cli.output import flush, write, write_json
from penstock.cli.progress import ProgressLine
from penstock.cli.service_manager import ServiceManager
from penstock.errors import BadSettings, BadStore, Unreachable
from penstock.format import kernels
from penstock.human_units import format_size
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.namesrv.access import LocalRule
from penstock.observation.http_responder import answering
from penstock.remoting.connection import Address
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import bind, parse_address
from penstock.store import MessageStore, Progress, Settings
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.readonly.infer_file_sizes import fit_to_files
from penstock.store.settings import BrokerRole

log = logging.getLogger("penstock.serve")
STORE: Final = Path("data/store")
HOST: Final = "127.0.0.1"
_REMOTE_ADDRESS: Final = ("192.0.2.1", 9)
"""An address reserved for documentation. Connecting a UDP socket to it sends nothing, but selects the local address."""


def load_settings(
    folder: Path | None, config: Path | None, pairs: Sequence[str], *, dev: bool, register: str | None
) -> Settings:
    """Returns the settings of the store and the broker. Raises BadSettings.

    Without a configuration file, a profile and the size of log files, the log grows: see growLogFiles.
    """
    given = [*pairs] if register is None else [*pairs, f"namesrvAddr={register}"]
    settings = Settings.load(config, given, base=Settings.dev() if dev else None)
    if config is None and not dev and not settings.given & {"grow_log_files", "mapped_file_size_commit_log"}:
        settings = settings.with_changes(grow_log_files=True)
    if folder is not None:
        return settings.with_changes(store_path_root_dir=folder)
    if "store_path_root_dir" not in settings.given:
        return settings.with_changes(store_path_root_dir=STORE)
    return settings


def fitted(settings: Settings) -> Settings:
    """Returns the settings with the file sizes of the existing store. Raises BadStore."""
    layout, files = Layout.of(settings.store_path_root_dir, settings), Files()
    if not settings.store_path_root_dir.is_dir():
        return settings
    result, problem = fit_to_files(settings, files, layout)
    if problem and settings.message_index_enable:
        raise BadStore(problem)
    return result


class ListeningPort:
    """The broker's listening socket, and the address that the broker advertises to clients."""

    def __init__(self, listen: str | None, settings: Settings) -> None:
        """Raises BadSettings, or Unreachable if the port is in use."""
        self.host, port = (HOST, settings.listen_port) if listen is None else parse_address(listen, "--listen")
        self.is_chosen = port != 0
        """Whether the port was chosen by a person, not by the system."""
        self.bound = bind(self.host, port)
        self.address, self.port = self.bound.getsockname()[:2]
        advertised_port = settings.listen_port if listen and "listen_port" in settings.given else self.port
        advertised_ip = settings.broker_ip1 if "broker_ip1" in settings.given else _reachable(self.address)
        self.settings = settings.with_changes(broker_ip1=advertised_ip, listen_port=advertised_port)

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines can reach the port."""
        return not ipaddress.ip_address(self.address).is_loopback


def _reachable(address: str) -> str:
    """Returns `address` or, if it is a wildcard address, the local address of the default route. Raises BadSettings if
    there is none.
    """
    ip = ipaddress.ip_address(address)
    if not ip.is_unspecified:
        return address
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_REMOTE_ADDRESS)
        return str(probe.getsockname()[0])
    raise BadSettings(f"--listen {address} needs brokerIP1, the address for clients; this machine has none")


def name_server(settings: Settings, broker: BrokerSettings, access: Access | None) -> NameServer:
    """Returns the embedded name server, with settings derived from the broker's. Raises BadSettings or BadStore."""
    of_names = namesrv_settings(settings, broker)
    rule = LocalRule(of_names.register_broker_from)
    return NameServer(of_names, before=None if access is None else Signatures(access).for_name_server(rule))


def namesrv_settings(settings: Settings, broker: BrokerSettings) -> NamesrvSettings:
    """Returns the embedded name server's settings, derived from the broker's. The KV file is in the store, or beside
    the stores of several brokers.
    """
    return NamesrvSettings(
        auto_create_topic_enable=broker.auto_create_topic_enable,
        kv_config_path=settings.store_path_root_dir / "penstock" / "kvConfig.json",
        register_broker_from=broker.register_broker_from,
        server_channel_max_idle_time_seconds=broker.server_channel_max_idle_time_seconds,
        tls={name: text for name, text in settings.broker.items() if name.startswith("tls.")},
    )


_CHECK_S: Final = 1.0
OBSERVE_ABOVE: Final = 2
"""The port for metrics and health is by default so much above the broker's; the next below and above are RocketMQ's."""


def bind_observe(given: str | None, broker: ListeningPort, settings: BrokerSettings) -> socket.socket | None:
    """Returns the bound socket for metrics and health; None if it is off.

    `given` is the option, which wins over the setting. By default the port is on the broker's own address if that is a
    loopback one, otherwise on 127.0.0.1. Raises Unreachable if the port that was asked for is in use; the default
    port is one that the broker can do without.
    """
    text = given if given is not None else settings.observe_port
    what = "observePort" if given is None else "--observe-port"
    if text is not None:
        address = observe_address(text, what)
        return None if address is None else bind(*address)
    port = broker.port + OBSERVE_ABOVE if broker.is_chosen else 0
    try:
        return bind(HOST if broker.is_open_to_others else broker.address, port) if port <= MAX_PORT else None
    except Unreachable as error:
        log.warning("no metrics and health: %s; --observe-port chooses another port", error)
        return None


MAX_PORT: Final = 65535
_NAMESRV_GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The settings of store and broker, and what the command line says."""

    settings: Settings
    listen: str | None
    namesrv: str
    console: str
    console_account: Path | None
    observe_port: str | None
    config: Path | None
    log_level: LogLevel
    log_format: LogFormat
    as_json: bool
    is_supervised: bool = False
    """Whether this is a broker of `penstock serve --brokers`, and its standard input the link to the supervisor."""

    @property
    def log_options(self) -> list[str]:
        """The options for the log of the console."""
        return [f"--log-level={self.log_level.value}", f"--log-format={self.log_format.value}"]

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses to listen at, by option."""
        above = f"{OBSERVE_ABOVE} above the broker's port"
        return {
            "--listen": self.listen or f"{HOST}:{self.settings.listen_port}",
            "--namesrv": self.namesrv,
            "--console": self.console,
            "--observe-port": self.observe_port or BrokerSettings.of(self.settings).observe_port or above,
        }

    def check(self) -> None:
        """Raises BadSettings for what can be seen to be wrong before a port is bound."""
        broker = BrokerSettings.of(self.settings)
        Access.of(broker)
        if broker.failover != "off":
            from penstock.broker.failover.failover_settings import check_failover, engine_of
            from penstock.broker.failover.role_change_commands import commands_of

            if self.is_supervised:
                raise BadSettings(
                    "failover elects the master of one broker name and cannot be used with --brokers; use one of them"
                )
            check_failover(self.settings)
            engine_of(self.settings, broker)
            commands_of(broker)
        if self.listen is not None:
            parse_address(self.listen, "--listen")
        for name, address in (("--namesrv", self.namesrv), ("--console", self.console)):
            if address != OFF:
                parse_address(address, name)
        if self.observe_port is not None:
            observe_address(self.observe_port, "--observe-port")


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that stop the broker: SIGTERM, Ctrl-C, and a closed terminal unless nohup ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


class _Ended(BaseException):
    """A signal arrived before the broker served."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Until the event loop handles signals, one of them ends the recovery, and the console with it.

    The process then ends by that signal, as its parent expects.
    """

    def end(number: int, _: object) -> None:
        raise _Ended(number)

    handled = [each for each in stop_signals() if each is not signal.SIGINT]  # for which Python raises an error itself
    before = {each: signal.signal(each, end) for each in handled}
    try:
        yield
    except _Ended as ended:
        log.info("%s: ended before the store was open", signal.Signals(ended.number).name)
        logging.shutdown()
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def run_broker(options: ServeOptions) -> bool:
    """Serves until a signal arrives. Returns False if the broker had to stop by itself. Raises a PenstockError if it
    cannot start.
    """
    with ending_on_signals():
        return _run(options)


def _run(options: ServeOptions) -> bool:
    settings = options.settings
    of_broker = BrokerSettings.of(settings)
    if of_broker.failover != "off":
        settings = settings.with_changes(broker_role=BrokerRole.SLAVE)  # until it is elected
    port = ListeningPort(options.listen, settings)
    names = None if options.namesrv == OFF else bind(*parse_address(options.namesrv, "--namesrv"))
    observed = bind_observe(options.observe_port, port, of_broker)
    log_uncaught()
    if port.is_open_to_others and not of_broker.acl_enable:
        log.warning(
            "anyone who can reach %s can read and write all messages: aclEnable=false",
            host_text(port.address, port.port),
        )
    observation, manager = Observation(of_broker), ServiceManager()
    with (
        closing(manager),
        answering(observed, observation.answer) as observe_url,
        ConsoleChild(
            options.console, port.settings, names, options.config, options.console_account, options.log_options
        ) as console,
    ):
        watchers = Watchers(console, observation, manager)
        link = inherited_link() if options.is_supervised else None
        may_have_bar = options.log_format is LogFormat.TEXT and link is None
        addresses = {"console": console.link, "observe": observe_url}
        ended, announce = Ended.TO_REOPEN, None if link is not None else partial(_announce, as_json=options.as_json)
        while ended is Ended.TO_REOPEN:
            opened = _open(port, watchers, may_have_bar=may_have_bar)
            ended = run(_serve(opened, port, names, watchers, addresses, announce, link))
            announce = None
        if ended is Ended.BY_ITSELF:
            console.leave_behind()
    return ended is Ended.BY_SIGNAL


class Ended(Enum):
    """Why the broker stopped serving."""

    BY_SIGNAL = "a signal arrived"
    BY_ITSELF = "it had to stop"
    TO_REOPEN = "its store has to be opened again, because a part of a slave's log has to be cut"


class Watchers(NamedTuple):
    """Those that are told how far the broker is: its console, those that watch its port, and the service manager."""

    console: ConsoleChild
    observation: Observation
    manager: ServiceManager

    def recovering(self, progress: Progress) -> None:
        self.console.notify(progress.phase, progress.done, progress.total)
        self.observation.recover(progress.phase, progress.done, progress.total)
        share = f": {progress.done * 100 // progress.total} %" if progress.total > 0 else ""
        self.manager.starting(f"{progress.phase}{share}")

    def serving(self, broker: Broker, address: str) -> None:
        """Call it on the broker's loop."""
        tasks = broker.state.tasks
        tasks.every(_CHECK_S, "web console", self.console.check)
        if self.manager.alive_every_s is not None:
            tasks.every(self.manager.alive_every_s, "watchdog", self.manager.alive)
        self.console.notify("")
        self.observation.serve(broker)
        self.manager.ready(f"serving at {address}")

    def stopping(self) -> None:
        self.observation.stop()
        self.manager.stopping()


def _log_start(settings: Settings) -> None:
    """Logs which program starts where, on which kernels, and which settings differ from their defaults."""
    folder = settings.store_path_root_dir.absolute()
    python = ".".join(map(str, sys.version_info[:3]))
    log.info(
        "Penstock %s starts: store %s, process %d, Python %s, %s kernels",
        __version__,
        folder,
        os.getpid(),
        python,
        kernels.active,
    )
    changed = [f"{each.name}={each.value}" for each in shown_settings(settings) if not each.is_default]
    log.info("settings that differ from the defaults: %s", ", ".join(changed) or "none")


def _log_opened(store: MessageStore, seconds: float) -> None:
    """Logs how the store was opened, with the figures of its recovery."""
    report, log_bytes = store.report, store.log.max_offset - max(0, store.log.min_offset)
    how = "opened" if report.clean_exit else "recovered after an unclean end"
    log.info(
        "the store is %s in %.2f s: log of %s up to offset %d, walked from %d; torn %d bytes, damaged ranges %d, queue "
        "units dropped %d, added %d; queues %d, topics %d",
        how,
        seconds,
        format_size(log_bytes),
        report.log_end,
        report.walked_from,
        report.torn_bytes,
        len(report.damage),
        report.units_cut,
        report.units_added,
        len(store.queues),
        len(store.queues.topics()),
    )


def _open(port: ListeningPort, watchers: Watchers, *, may_have_bar: bool) -> MessageStore:
    """Recovers and opens the store. Shows the progress on stderr and to those that watch."""
    began, has_begun = time.monotonic(), False

    def begin() -> None:
        """Logs the start once the store is known to be ours: that it is in use, or not a store, is one sentence."""
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            _log_start(port.settings)

    with ProgressLine(note=lambda line: log.info("%s", line), may_have_bar=may_have_bar) as line:

        def show(progress: Progress) -> None:
            begin()
            line.report(progress)
            watchers.recovering(progress)

        elects = BrokerSettings.of(port.settings).failover != "off"
        folder, settings = port.settings.store_path_root_dir, fitted(port.settings)
        store = MessageStore.open(folder, settings, progress=show, in_sync_set=elects)
    begin()
    _log_opened(store, time.monotonic() - began)
    return store


class ServedBroker(Protocol):
    """A broker that serves until it is stopped; with failover a series of them."""

    async def start(self, port: ListeningPort) -> Address:
        """Starts serving, and returns the address."""

    def watch(self, serving: Callable[[Broker], object]) -> None:
        """Calls `serving` with the broker that serves, and with each that replaces it."""

    async def stop(self) -> bool:
        """Stops, and closes the store. Returns whether that succeeded in time."""

    @property
    def has_left(self) -> bool:
        """Whether it had to stop by itself."""


class SingleBroker:
    """The one broker of a process without failover."""

    def __init__(self, broker: Broker, stop: asyncio.Event, reopen: Callable[[str], object]) -> None:
        """`reopen` is called if the store has to be opened again, to cut what its master does not have."""
        self.broker = broker
        broker.state.tasks.on_leave.append(stop.set)
        broker.replication.on_cut(reopen)

    async def start(self, port: ListeningPort) -> Address:
        return await self.broker.start(port.host, port.port, port.bound.dup())

    def watch(self, serving: Callable[[Broker], object]) -> None:
        serving(self.broker)

    async def stop(self) -> bool:
        return await self.broker.stop()

    @property
    def has_left(self) -> bool:
        return self.broker.state.tasks.has_left


async def _serve(
    store: MessageStore,
    port: ListeningPort,
    names: socket.socket | None,
    watchers: Watchers,
    addresses: dict[str, str],
    announce: Callable[[MessageStore, BrokerSettings, dict[str, str]], object] | None,
    link: socket.socket | None,
) -> Ended:
    """Serves until a signal arrives, or the link to the supervisor ends, or the store has to be opened again.

    `addresses` are those of what runs already. In the last case the listening sockets stay open, so that clients wait.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    cuts: list[str] = []

    def reopen(why: str) -> None:
        cuts.append(why)
        stop.set()

    server: NameServer | None = None
    supervisor: SupervisorLink | None = None
    running: ServedBroker
    try:
        settings = BrokerSettings.of(store.settings)
        access = Access.of(settings)
        if names is not None:
            server = name_server(store.settings, settings, access)
        for number in stop_signals():
            loop.add_signal_handler(number, _on_signal, number, stop)
        if settings.failover == "off":
            running = SingleBroker(Broker(store, settings, name_server=server, access=access), stop, reopen)
        else:
            from penstock.cli.elected_broker import ElectedBroker  # costs time and memory, and few need it

            running = elected = ElectedBroker(store, settings, server, access, stop)
            watchers.observation.elect(elected.elections)
        listening = await running.start(port)
        addresses = {"broker": host_text(*listening), "namesrv": "", **addresses}
        if server is not None and names is not None:
            names_host, names_port = names.getsockname()[:2]
            addresses["namesrv"] = host_text(*await server.start(names_host, names_port, names.dup()))
        if link is not None:
            assert isinstance(running, SingleBroker)
            supervisor = SupervisorLink(running.broker.state, stop.set)
            await supervisor.start(link, {**addresses, "advertised": store.settings.store_host})
    except BaseException:
        store.close()
        raise
    running.watch(lambda broker: watchers.serving(broker, addresses["broker"]))
    _log_listening(store, settings, addresses)
    if announce is not None:
        announce(store, settings, addresses)
    gc.collect()
    gc.freeze()  # the collector need not scan objects that live as long as the broker
    await stop.wait()
    reopens = bool(cuts) and link is None
    if not reopens:
        for listener in (port.bound, names):
            if listener is not None:
                listener.close()
    began = time.monotonic()
    watchers.stopping()
    in_time = await running.stop()
    if supervisor is not None:
        supervisor.close()
    if server is not None:
        await server.stop(_NAMESRV_GRACE_S)
    if in_time:
        log.info("stopped in %.2f s: the tables are saved, and the store is closed", time.monotonic() - began)
    else:
        log.error("the broker did not stop in time; the next start will recover")
        logging.shutdown()
        os._exit(exit_codes.PROBLEM)  # a thread still waits for the disk, and a normal exit would wait for that thread
    if running.has_left or (cuts and link is not None):
        return Ended.BY_ITSELF
    return Ended.TO_REOPEN if reopens else Ended.BY_SIGNAL


def _on_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    if stop.is_set():
        log.error("%s again: the process ends at once; the next start will recover", number.name)
        logging.shutdown()
        os._exit(exit_codes.PROBLEM)
    log.info("%s: stopping", number.name)
    stop.set()


def _log_listening(store: MessageStore, settings: BrokerSettings, addresses: dict[str, str]) -> None:
    console = addresses["console"].partition("?")[0]  # without the token
    log.info(
        "listening: broker %s (%s of %s, advertised as %s), name server %s, console %s, metrics and health %s",
        addresses["broker"],
        settings.broker_name,
        settings.broker_cluster_name,
        store.settings.store_host,
        addresses["namesrv"] or OFF,
        console or OFF,
        addresses["observe"] or OFF,
    )


def _announce(store: MessageStore, settings: BrokerSettings, addresses: dict[str, str], as_json: bool) -> None:
    folder = store.layout.root
    if as_json:
        write_json({**addresses, "advertised": store.settings.store_host, "store": str(folder.absolute())})
    else:
        write(f"Penstock {__version__} serves the store {folder}\n")
        write(f"  broker       {addresses['broker']}  ({settings.broker_name} of {settings.broker_cluster_name})\n")
        if store.settings.store_host != addresses["broker"]:
            write(f"               advertised as {store.settings.store_host}\n")
        if addresses["namesrv"]:
            write(f"  name server  {addresses['namesrv']}\n")
        if addresses["console"]:
            write(f"  console      {addresses['console']}\n")
        if addresses["observe"]:
            write(f"  metrics      {addresses['observe']}/metrics  (and /healthz, /readyz)\n")
        clients = addresses["namesrv"] or ";".join(settings.name_servers)
        write(f"Clients connect with NAMESRV_ADDR={clients}\n" if clients else "No name server has this broker.\n")
        write("Stop with Ctrl-C or SIGTERM.\n")
    flush()
