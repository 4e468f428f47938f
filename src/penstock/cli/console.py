"""`penstock console`: the web console on its own, against any RocketMQ cluster."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.options import AsJson, option
from penstock.cli.output import flush, say, write, write_json
from penstock.errors import MissingPackage

LISTEN: Final = "127.0.0.1:8080"
TOKEN_VARIABLE: Final = "PENSTOCK_CONSOLE_TOKEN"
LISTENER_VARIABLE: Final = "PENSTOCK_CONSOLE_LISTENER"
HOW_TO_GET_IT: Final = "the web console needs more packages: pip install 'penstock[console]'"


def is_installed() -> bool:
    """Whether the packages of the extra `console` are there."""
    return all(importlib.util.find_spec(name) is not None for name in ("nicegui", "prometheus_client"))


def console(
    namesrv: Annotated[
        str | None, option("--namesrv", "HOST:PORT;…", "The name servers; NAMESRV_ADDR unless given.")
    ] = None,
    listen: Annotated[
        str, option("--listen", "HOST:PORT", f"Where the console listens; {LISTEN} unless given.")
    ] = LISTEN,
    token: Annotated[
        str | None, option("--token", "T", f"What lets people in; {TOKEN_VARIABLE}, or a new one, unless given.")
    ] = None,
    name: Annotated[
        list[str] | None, option("--name", "HOST", "A host name under which it is asked for; repeatable.")
    ] = None,
    store: Annotated[
        Path | None, option("--store", "DIR", "A store on this machine, for the page Store and the jobs.")
    ] = None,
    exports: Annotated[Path | None, option("--exports", "DIR", "Where the exports of the pipeline go.")] = None,
    config: Annotated[Path | None, option("--config", "FILE", "The broker.conf that the store is served with.")] = None,
    account: Annotated[
        Path | None, option("--account", "FILE", "A file with accessKey and secretKey, where access is controlled.")
    ] = None,
    trust: Annotated[
        Path | None, option("--trust", "FILE", "Speak TLS to the cluster, and trust these certificates (PEM).")
    ] = None,
    master: Annotated[
        str | None, option("--master", "URL", "Spark's master for the jobs; this machine otherwise.")
    ] = None,
    conf: Annotated[list[str] | None, option("--conf", "K=V", "A setting of Spark for the jobs; repeatable.")] = None,
    under_serve: Annotated[bool, typer.Option("--under-serve", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """The web console for a RocketMQ cluster, Penstock's or Java's.

    Prints a link with the token that lets people in. `penstock serve` starts one by itself. It talks to the brokers as
    an administrator's client does, and stops on SIGTERM or Ctrl-C. Exit status: 0 stopped; 2 could not start.

    Examples:

    \b
      penstock console --namesrv 127.0.0.1:9876
      penstock console --namesrv 10.0.0.1:9876 --listen 0.0.0.0:8080 --name mq.example.org
    """
    if not is_installed():
        raise MissingPackage(HOW_TO_GET_IT)
    from penstock.cli.network import read_account
    from penstock.client.config import ClientConfig
    from penstock.console.access import AccessPolicy, make_token
    from penstock.console.console import ConsoleOptions
    from penstock.console.memory import without_http_clients
    from penstock.remoting.event_loop import run
    from penstock.remoting.sockets import listen as listen_at
    from penstock.remoting.sockets import parse_address

    with without_http_clients():
        from penstock.console.server import serve
    token = token or os.environ.pop(TOKEN_VARIABLE, "") or make_token()
    spark = [f"--conf={pair}" for pair in conf or ()] + ([f"--master={master}"] if master else [])
    options = ConsoleOptions(
        config=ClientConfig(
            namesrv or "",
            credentials=None if account is None else read_account(account),
            tls=None if trust is None else {"tls.enable": "true", "tls.client.trustCertPath": str(trust)},
        ),
        store=None if store is None else store.absolute(),
        exports=None if exports is None else exports.absolute(),
        broker_conf=None if config is None else config.absolute(),
        spark=tuple(spark),
    )
    host, port = parse_address(listen, "--listen")
    inherited = os.environ.pop(LISTENER_VARIABLE, "") if under_serve else ""
    bound = socket.socket(fileno=int(inherited)) if inherited else None
    listener = listen_at(host, port, bound)  # the link works from the moment it is printed
    address, port = listener.getsockname()[:2]
    door = AccessPolicy(token, names=[*(name or ()), host], cookie=f"penstock_console_{port}")
    if not under_serve:
        _announce(link(address, port, token), options.config.namesrv, as_json)
    run(serve(options, door, listener, sys.stdin.fileno() if under_serve else None))


def link(address: str, port: int, token: str) -> str:
    """What a person opens; where it listens everywhere, this machine's name for itself stands for that."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    place = f"[{shown}]" if ":" in shown else shown
    return f"http://{place}:{port}/?token={token}"


def _announce(where: str, namesrv: str, as_json: bool) -> None:
    if as_json:
        write_json({"console": where, "namesrv": namesrv})
    else:
        write(f"The console of {namesrv}: {where}\n")
        say("whoever has this link can look at all messages and change what the console can.")
    flush()
