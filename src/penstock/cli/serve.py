"""`penstock serve`: a broker, a name server and a store in one process, with the web console as a child process.

The command binds the ports first, so that a port in use is reported at once. Then it opens and recovers the store. Then
it starts both servers. SIGTERM or Ctrl-C stops them within stopLimitMillis; a second signal ends the process at once.
Log lines go to stderr, as text or JSON, and never contain a body or a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

import typer

from penstock import __version__
from penstock.broker.access import Access
from penstock.broker.broker import Broker
from penstock.broker.core import host_text
from penstock.broker.remoting.signatures import Signatures
from penstock.broker.settings import BrokerSettings
from penstock.cli import exit_codes
from penstock.cli.cluster_connection import read_account
from penstock.cli.console import HOW_TO_GET_IT, LISTEN, LISTENER_VARIABLE, TOKEN_VARIABLE, is_installed, link
from penstock.cli.logs import LogFormat, LogLevel, log_to
from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import flush, write, write_json, write_note
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings, BadStore, PenstockError, Unreachable
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.namesrv.access import LocalRule
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import bind, parse_address
from penstock.remoting.tls import TlsMode, server_tls
from penstock.store import MessageStore, Progress, Settings
from penstock.store.file_io import Files
from penstock.store.layout import Layout
from penstock.store.readonly.geometry import fit_to_files

STORE: Final = Path("data/store")
HOST: Final = "127.0.0.1"
NAMESRV: Final = "127.0.0.1:9876"
OFF: Final = "off"
_REMOTE_ADDRESS: Final = ("192.0.2.1", 9)
"""An address reserved for documentation. Connecting a UDP socket to it sends nothing, but selects the local address."""


def load_settings(
    folder: Path | None, config: Path | None, pairs: Sequence[str], *, dev: bool, register: str | None
) -> Settings:
    """Returns the settings of the store and the broker. Raises BadSettings."""
    given = [*pairs] if register is None else [*pairs, f"namesrvAddr={register}"]
    settings = Settings.load(config, given, base=Settings.dev() if dev else None)
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


def namesrv_settings(settings: Settings, broker: BrokerSettings) -> NamesrvSettings:
    """Returns the embedded name server's settings, derived from the broker's. The KV file is in the store."""
    return NamesrvSettings(
        auto_create_topic_enable=broker.auto_create_topic_enable,
        kv_config_path=settings.store_path_root_dir / "penstock" / "kvConfig.json",
        register_broker_from=broker.register_broker_from,
        server_channel_max_idle_time_seconds=broker.server_channel_max_idle_time_seconds,
        tls={name: text for name, text in settings.broker.items() if name.startswith("tls.")},
    )


_CHECK_S: Final = 1.0
_NOTIFY_S: Final = 0.5
_STOP_S: Final = 5.0


class ConsoleChild:
    """The web console as a child process. It starts before the store is opened, and ends with the broker.

    This class binds the console's port, so that a port in use is reported at once. If the port is in use, or the
    packages of the extra `console` are missing, the broker runs without a console. A pipe reports the progress of
    recovery to the child. The child ends when the pipe closes, even if the broker crashed. The token is passed in the
    environment, and an account by its file, because other users can see a command line. Any thread may call `notify`,
    but not two threads at the same time.
    """

    def __init__(
        self,
        listen: str,
        settings: Settings,
        names: socket.socket | None,
        config: Path | None,
        account: Path | None = None,
    ) -> None:
        """`account` is a file with an administrator's keys, for aclEnable. Raises BadSettings."""
        self.link = ""
        """The console's URL; empty without a console."""
        self._process: subprocess.Popen[bytes] | None = None
        self._notified: tuple[str, float] = ("", 0.0)
        if listen == OFF:
            return
        namesrv = _name_server(settings, names)
        if account is not None:
            read_account(account)  # raises for a bad file, before the store is opened
        obstacle = _obstacle(settings, namesrv, account)
        if obstacle:
            write_note(f"no web console: {obstacle}")
            return
        try:
            listener = bind(*parse_address(listen, "--console"))
        except Unreachable as error:
            write_note(f"no web console: {error}; --console HOST:PORT chooses another port.")
            return
        with listener:
            self._start(listener, namesrv, settings, config, account)
        self.notify("opening the store")

    def _start(
        self, listener: socket.socket, namesrv: str, settings: Settings, config: Path | None, account: Path | None
    ) -> None:
        from penstock.console.access import make_token

        token = os.environ.get(TOKEN_VARIABLE, "") or make_token()
        address, port = listener.getsockname()[:2]
        command = [sys.executable, "-m", "penstock.cli.main", "console", "--under-serve", f"--namesrv={namesrv}"]
        command += [f"--listen={address}:{port}", f"--store={settings.store_path_root_dir}"]
        command.append(f"--exports={settings.store_path_root_dir.parent / 'exports'}")
        command += [] if config is None else [f"--config={config}"]
        command += [] if account is None else [f"--account={account}"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches only the broker, which then ends the console
            env={**os.environ, TOKEN_VARIABLE: token, LISTENER_VARIABLE: str(listener.fileno())},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.link = link(address, port, token)

    def notify(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Reports the phase of the broker's recovery to the console. An empty phase means that the broker serves."""
        now = time.monotonic()
        if self._process is None or (phase and phase == self._notified[0] and now - self._notified[1] < _NOTIFY_S):
            return
        self._notified = phase, now
        assert self._process.stdin is not None
        line = json.dumps({"phase": phase, "done": done, "total": total}) + "\n"
        with contextlib.suppress(OSError):  # a console that has ended or does not read must not stop the broker
            os.write(self._process.stdin.fileno(), line.encode())

    def check(self) -> None:
        """Raises PenstockError if the console has ended by itself. The broker goes on without it."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise PenstockError(f"it has ended with status {status}; restart the broker to have it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _name_server(settings: Settings, names: socket.socket | None) -> str:
    """Returns the name servers for the console: the embedded one, or those at which the broker registers."""
    if names is None:
        return ";".join(BrokerSettings.of(settings).name_servers)
    host, port = names.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _obstacle(settings: Settings, namesrv: str, account: Path | None) -> str:
    """Returns the reason why the console cannot run and what to do; empty if it can run."""
    if not is_installed():
        return f"{HOW_TO_GET_IT}, or disable it with --console off."
    if not namesrv:
        return "it needs a name server, and none is configured."
    if BrokerSettings.of(settings).acl_enable and account is None:
        return "with aclEnable it needs an administrator's account, from --console-account FILE."
    if server_tls(settings.broker).mode is TlsMode.ENFORCING:
        return "with tls.server.mode=enforcing it needs certificates to trust; run `penstock console --trust FILE`."
    return ""


_NAMESRV_GRACE_S = 1.0


class Profile(StrEnum):
    """A named set of defaults."""

    DEV = "dev"


def serve(
    store: Annotated[Path | None, option("--store", "DIR", "The store's directory; default: data/store.")] = None,
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "The broker's address; default: 127.0.0.1:10911.")
    ] = None,
    namesrv: Annotated[
        str, option("--namesrv", "HOST:PORT|off", "The name server's address; default: 127.0.0.1:9876.")
    ] = NAMESRV,
    register: Annotated[str | None, option("--register", "HOST:PORT;…", "More name servers to register with.")] = None,
    console: Annotated[
        str, option("--console", "HOST:PORT|off", f"The web console's address; default: {LISTEN}.")
    ] = LISTEN,
    console_account: Annotated[
        Path | None, option("--console-account", "FILE", "accessKey and secretKey for the console, with aclEnable.")
    ] = None,
    profile: Annotated[Profile | None, option("--profile", "dev", "dev: small files, for a laptop.")] = None,
    config: Config = None,
    pairs: Pairs = None,
    log_level: Annotated[
        LogLevel, option("--log-level", "LEVEL", "debug, info, warning or error; default: info.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat, option("--log-format", "text|json", "Format of the log on stderr; default: text.")
    ] = LogFormat.TEXT,
    as_json: AsJson = False,
) -> None:
    """Run a broker with a name server and a web console.

    Any RocketMQ client can connect. Listens on this machine only by default, and prints its addresses; port 0 is any
    free port. Stops on SIGTERM or Ctrl-C. Exit status: 0 stopped cleanly; 1 failed, or not stopped within
    stopLimitMillis; 2 could not start: bad options, a port in use, or a store that cannot be opened.

    Examples:

    \b
      penstock serve
      penstock serve --profile dev --listen 127.0.0.1:0 --namesrv 127.0.0.1:0
      penstock serve --store /srv/store --listen 10.0.0.7:10911 --config broker.conf --set flushDiskType=SYNC_FLUSH
    """
    log_to(form=log_format, level=log_level)
    settings = load_settings(store, config, pairs or (), dev=profile is Profile.DEV, register=register)
    Access.of(BrokerSettings.of(settings))  # raises for bad access settings, before a port is bound
    if console != OFF:
        parse_address(console, "--console")
    port = ListeningPort(listen, settings)
    names = None if namesrv == OFF else bind(*parse_address(namesrv, "--namesrv"))
    if port.is_open_to_others and not BrokerSettings.of(settings).acl_enable:
        write_note(f"anyone who can reach {port.address}:{port.port} can read and write all messages: aclEnable=false.")
    with ConsoleChild(console, port.settings, names, config, console_account) as console_child:
        served = run(_serve(_open(port, console_child), port, names, console_child, as_json))
    if not served:
        raise typer.Exit(exit_codes.PROBLEM)


def _open(port: ListeningPort, console: ConsoleChild) -> MessageStore:
    """Recovers and opens the store. Shows the progress on stderr and in the console."""
    with ProgressLine() as line:

        def show(progress: Progress) -> None:
            line.report(progress)
            console.notify(progress.phase, progress.done, progress.total)

        return MessageStore.open(port.settings.store_path_root_dir, fitted(port.settings), progress=show)


async def _serve(
    store: MessageStore, port: ListeningPort, names: socket.socket | None, console: ConsoleChild, as_json: bool
) -> bool:
    """Serves until a signal arrives. Returns False if the broker had to stop by itself."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server: NameServer | None = None
    try:
        settings = BrokerSettings.of(store.settings)
        access = Access.of(settings)
        if names is not None:
            of_names = namesrv_settings(store.settings, settings)
            rule = LocalRule(of_names.register_broker_from)
            server = NameServer(of_names, before=None if access is None else Signatures(access).for_name_server(rule))
        broker = Broker(store, settings, name_server=server, access=access)
        broker.state.tasks.on_leave.append(stop.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: os._exit(exit_codes.PROBLEM) if stop.is_set() else stop.set())
        listening = await broker.start(port.host, port.port, port.bound)
        addresses = {"broker": host_text(*listening), "namesrv": ""}
        if server is not None and names is not None:
            names_host, names_port = names.getsockname()[:2]
            addresses["namesrv"] = host_text(*await server.start(names_host, names_port, names))
    except BaseException:
        store.close()
        raise
    broker.state.tasks.every(_CHECK_S, "web console", console.check)
    console.notify("")
    addresses["console"] = console.link
    _announce(store, settings, addresses, as_json)
    gc.collect()
    gc.freeze()  # the collector need not scan objects that live as long as the broker
    await stop.wait()
    in_time = await broker.stop()
    if server is not None:
        await server.stop(_NAMESRV_GRACE_S)
    if not in_time:
        write_note("the broker did not stop in time; the next start will recover.")
        os._exit(exit_codes.PROBLEM)  # a thread still waits for the disk, and a normal exit would wait for that thread
    return not broker.state.tasks.has_left


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
        clients = addresses["namesrv"] or ";".join(settings.name_servers)
        write(f"Clients connect with NAMESRV_ADDR={clients}\n" if clients else "No name server has this broker.\n")
        write("Stop with Ctrl-C or SIGTERM.\n")
    flush()
