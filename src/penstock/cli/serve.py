"""The log's lines: text for people, or one JSON object a line for programs. They never hold a body or a secret.

What the options of `penstock serve` add up to: where to listen, what clients are told, and all settings.

The web console as a child of `penstock serve`: started before the store is opened, ended with the broker.

The port is taken here, so that one that is in use is said at once; without it, or without the extra's packages, the
broker goes on alone. A pipe to the child tells it how far recovery is, and its end, however the broker ends, is what
has the child end. The token goes by the environment, and an account by the file that holds it: neither is on a command
line, which other users of this machine can see.


`penstock serve`: a broker and a name server on an embedded store, in one process.

The ports are taken first, so that one that is in use is said at once; then the store is opened and recovered; then both
servers start. SIGTERM or Ctrl-C stop them within a limit, a second one at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import logging
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
from typing import Annotated, Final, Self, TextIO

from penstock import __version__
from penstock.broker.access import Access
from penstock.broker.broker import Broker
from penstock.broker.replies import host_text
from penstock.broker.settings import BrokerSettings
from penstock.cli import exit_codes
from penstock.cli.console import HOW_TO_GET_IT, LISTEN, LISTENER_VARIABLE, TOKEN_VARIABLE, is_installed, link
from penstock.cli.network import read_account
from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import flush, write, write_json, write_note
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings, BadStore, Unreachable
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.namesrv.access import LocalRule
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import bind, parse_address
from penstock.remoting.tls import TlsMode, server_tls
from penstock.store import MessageStore, Progress, Settings
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.readonly.geometry import fit_to_files


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00.123Z WARNING penstock.broker: …`, in UTC."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime


class _Json(_Text):
    """Time, level, logger and message; `trace` where an error nobody expected was met."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to(stream: TextIO = sys.stderr, form: LogFormat = LogFormat.TEXT, level: LogLevel = LogLevel.INFO) -> None:
    """Has this process log to a stream; the loop's own complaints as well."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)


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


class ListeningPort:
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


_TELL_S: Final = 0.5
_END_S: Final = 5.0


class ConsoleChild:
    """One child process, or none. Any thread may `tell`, one at a time."""

    def __init__(
        self,
        listen: str,
        settings: Settings,
        names: socket.socket | None,
        config: Path | None,
        account: Path | None = None,
    ) -> None:
        """`account` is a file with an administrator's keys, where access is controlled. Raises BadSettings."""
        self.link = ""
        """What a person opens; empty if there is no console."""
        self._process: subprocess.Popen[bytes] | None = None
        self._told: tuple[str, float] = ("", 0.0)
        if listen == OFF:
            return
        namesrv = _name_server(settings, names)
        if account is not None:
            read_account(account)  # what is wrong with it is said before the store is opened
        why = _why_not(settings, namesrv, account)
        if why:
            write_note(f"there is no web console: {why}")
            return
        try:
            listener = bind(*parse_address(listen, "--console"))
        except Unreachable as error:
            write_note(f"there is no web console: {error}; --console HOST:PORT chooses another port.")
            return
        with listener:
            self._start(listener, namesrv, settings, config, account)
        self.tell("opening the store")

    def _start(
        self, listener: socket.socket, namesrv: str, settings: Settings, config: Path | None, account: Path | None
    ) -> None:
        from penstock.console.access import make_token

        token = os.environ.get(TOKEN_VARIABLE, "") or make_token()
        address, port = listener.getsockname()[:2]
        order = [sys.executable, "-m", "penstock.cli.main", "console", "--under-serve", f"--namesrv={namesrv}"]
        order += [f"--listen={address}:{port}", f"--store={settings.store_path_root_dir}"]
        order.append(f"--exports={settings.store_path_root_dir.parent / 'exports'}")
        order += [] if config is None else [f"--config={config}"]
        order += [] if account is None else [f"--account={account}"]
        self._process = subprocess.Popen(
            order,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the broker, which ends its console
            env={**os.environ, TOKEN_VARIABLE: token, LISTENER_VARIABLE: str(listener.fileno())},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.link = link(address, port, token)

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """What the broker is doing before it serves; nothing, when it serves."""
        now = time.monotonic()
        if self._process is None or (phase and phase == self._told[0] and now - self._told[1] < _TELL_S):
            return
        self._told = phase, now
        assert self._process.stdin is not None
        line = json.dumps({"phase": phase, "done": done, "total": total}) + "\n"
        with contextlib.suppress(OSError):  # it is gone, or does not read: the broker has other things to do
            os.write(self._process.stdin.fileno(), line.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _name_server(settings: Settings, names: socket.socket | None) -> str:
    """Where the console finds the broker: at its own name server, or at others that it registers with."""
    if names is None:
        return ";".join(BrokerSettings.of(settings).name_servers)
    host, port = names.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why_not(settings: Settings, namesrv: str, account: Path | None) -> str:
    """Why there can be no console here, and what to do; empty if there can."""
    if not is_installed():
        return f"{HOW_TO_GET_IT}, or leave it out with --console off."
    if not namesrv:
        return "it finds the broker through a name server, and there is none."
    if BrokerSettings.of(settings).acl_enable and account is None:
        return "with aclEnable it needs an administrator's account, from --console-account FILE."
    if server_tls(settings.broker).mode is TlsMode.ENFORCING:
        return "with tls.server.mode=enforcing it must know whom to trust; start `penstock console --trust FILE`."
    return ""


_NAMESRV_GRACE_S = 1.0


class Profile(StrEnum):
    """A set of settings for a purpose."""

    DEV = "dev"


def serve(
    store: Annotated[Path | None, option("--store", "DIR", "The store's folder; data/store unless given.")] = None,
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "Where the broker listens; 127.0.0.1:10911 unless given.")
    ] = None,
    namesrv: Annotated[
        str, option("--namesrv", "HOST:PORT|off", "Where the embedded name server listens; 127.0.0.1:9876.")
    ] = NAMESRV,
    register: Annotated[
        str | None, option("--register", "HOST:PORT;…", "Other name servers to register with, as well.")
    ] = None,
    console: Annotated[
        str, option("--console", "HOST:PORT|off", f"Where the web console listens; {LISTEN} unless given.")
    ] = LISTEN,
    console_account: Annotated[
        Path | None, option("--console-account", "FILE", "accessKey and secretKey for the console, with aclEnable.")
    ] = None,
    profile: Annotated[Profile | None, option("--profile", "dev", "dev: small files, for a laptop.")] = None,
    config: Config = None,
    pairs: Pairs = None,
    log_level: Annotated[
        LogLevel, option("--log-level", "LEVEL", "debug, info, warning or error; info unless given.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat, option("--log-format", "text|json", "The log's lines, on stderr.")
    ] = LogFormat.TEXT,
    as_json: AsJson = False,
) -> None:
    """A broker and a name server: any RocketMQ client can connect.

    Listens on this machine only unless told otherwise, and prints where; port 0 is any that is free. Stops on SIGTERM
    or Ctrl-C. Exit status: 0 stopped cleanly; 1 failed, or not stopped within the limit (stopLimitMillis); 2 could not
    start: bad options, a port in use, or a store that cannot be opened.

    Examples:

    \b
      penstock serve
      penstock serve --profile dev --listen 127.0.0.1:0 --namesrv 127.0.0.1:0
      penstock serve --store /srv/store --listen 10.0.0.7:10911 --config broker.conf --set flushDiskType=SYNC_FLUSH
    """
    log_to(form=log_format, level=log_level)
    settings = load_settings(store, config, pairs or (), dev=profile is Profile.DEV, register=register)
    Access.of(BrokerSettings.of(settings))  # whatever is wrong there is said before a port is taken
    if console != OFF:
        parse_address(console, "--console")
    door = ListeningPort(listen, settings)
    names = None if namesrv == OFF else bind(*parse_address(namesrv, "--namesrv"))
    if door.is_open_to_others and not BrokerSettings.of(settings).acl_enable:
        write_note(f"whoever can reach {door.address}:{door.port} can read and write all messages: aclEnable is false.")
    with ConsoleChild(console, door.settings, names, config, console_account) as beside:
        run(_serve(_open(door, beside), door, names, beside, as_json))


def _open(door: ListeningPort, beside: ConsoleChild) -> MessageStore:
    """Recovers and opens the store, showing how far that is."""
    with ProgressLine() as line:

        def show(told: Progress) -> None:
            line.report(told)
            beside.tell(told.phase, told.done, told.total)

        return MessageStore.open(door.settings.store_path_root_dir, fitted(door.settings), progress=show)


async def _serve(
    store: MessageStore, door: ListeningPort, names: socket.socket | None, beside: ConsoleChild, as_json: bool
) -> None:
    """Until a signal comes."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server: NameServer | None = None
    try:
        settings = BrokerSettings.of(store.settings)
        access = Access.of(settings)
        if names is not None:
            of_names = namesrv_settings(store.settings, settings)
            rule = LocalRule(of_names.register_broker_from)
            server = NameServer(of_names, before=None if access is None else access.for_name_server(rule))
        broker = Broker(store, settings, name_server=server, access=access)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: os._exit(exit_codes.PROBLEM) if stop.is_set() else stop.set())
        where = await broker.start(door.host, door.port, door.bound)
        told = {"broker": host_text(*where), "namesrv": ""}
        if server is not None and names is not None:
            host, port = names.getsockname()[:2]
            told["namesrv"] = host_text(*await server.start(host, port, names))
    except BaseException:
        store.close()
        raise
    beside.tell("")
    told["console"] = beside.link
    _announce(store, settings, told, as_json)
    gc.collect()
    gc.freeze()  # what lives as long as the broker need not be looked at again and again
    await stop.wait()
    in_time = await broker.stop()
    if server is not None:
        await server.stop(_NAMESRV_GRACE_S)
    if not in_time:
        write_note("the broker did not stop in time; the next start recovers.")
        os._exit(
            exit_codes.PROBLEM
        )  # a thread still waits for the disk, and leaving the loop would wait for the thread


def _announce(store: MessageStore, settings: BrokerSettings, told: dict[str, str], as_json: bool) -> None:
    folder = store.layout.root
    if as_json:
        write_json({**told, "advertised": store.settings.store_host, "store": str(folder.absolute())})
    else:
        write(f"Penstock {__version__} serves the store {folder}\n")
        write(f"  broker       {told['broker']}  ({settings.broker_name} of {settings.broker_cluster_name})\n")
        if store.settings.store_host != told["broker"]:
            write(f"               clients are told {store.settings.store_host}\n")
        if told["namesrv"]:
            write(f"  name server  {told['namesrv']}\n")
        if told["console"]:
            write(f"  console      {told['console']}\n")
        clients = told["namesrv"] or ";".join(settings.name_servers)
        write(f"Clients connect with NAMESRV_ADDR={clients}\n" if clients else "No name server knows this broker.\n")
        write("Ctrl-C or SIGTERM stops it.\n")
    flush()
