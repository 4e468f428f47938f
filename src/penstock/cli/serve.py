"""`penstock serve`: a broker and a name server on an embedded store, in one process.

The ports are taken first, so that one that is in use is said at once; then the store is opened and recovered; then both
servers start. SIGTERM or Ctrl-C stop them within a limit, a second one at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from penstock import __version__
from penstock.broker.access import Access
from penstock.broker.broker import Broker
from penstock.broker.log_format import LogFormat, LogLevel, log_to
from penstock.broker.peer_hosts import host_text
from penstock.broker.settings import BrokerSettings
from penstock.cli import exits
from penstock.cli.console import LISTEN
from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import flush, say, write, write_json
from penstock.cli.progress import ProgressLine
from penstock.cli.serve_console import ConsoleChild
from penstock.cli.serve_options import NAMESRV, OFF, Door, fitted, load_settings, namesrv_settings
from penstock.namesrv import NameServer
from penstock.namesrv.access import LocalRule
from penstock.remoting.addresses import parse_address
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import bind
from penstock.store import MessageStore, Progress

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
    door = Door(listen, settings)
    names = None if namesrv == OFF else bind(*parse_address(namesrv, "--namesrv"))
    if door.is_open_to_others and not BrokerSettings.of(settings).acl_enable:
        say(f"whoever can reach {door.address}:{door.port} can read and write all messages: aclEnable is false.")
    with ConsoleChild(console, door.settings, names, config, console_account) as beside:
        run(_serve(_open(door, beside), door, names, beside, as_json))


def _open(door: Door, beside: ConsoleChild) -> MessageStore:
    """Recovers and opens the store, showing how far that is."""
    with ProgressLine() as line:

        def show(told: Progress) -> None:
            line.tell(told)
            beside.tell(told.phase, told.done, told.total)

        return MessageStore.open(door.settings.store_path_root_dir, fitted(door.settings), progress=show)


async def _serve(
    store: MessageStore, door: Door, names: socket.socket | None, beside: ConsoleChild, as_json: bool
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
            loop.add_signal_handler(number, lambda: os._exit(exits.PROBLEM) if stop.is_set() else stop.set())
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
        say("the broker did not stop in time; the next start recovers.")
        os._exit(exits.PROBLEM)  # a thread still waits for the disk, and leaving the loop would wait for the thread


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
