"""`penstock console`: the web console as its own process, for any RocketMQ cluster."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import exit_codes
from penstock.cli.log_output import LogFormat, LogFormatOption, LogLevel, LogLevelOption, log_to, log_uncaught
from penstock.cli.options import AsJson, option
from penstock.cli.output import flush, write, write_json, write_note
from penstock.errors import MissingPackage

LISTEN: Final = "127.0.0.1:8080"
KEEP_SPARK_S: Final = 300
TOKEN_VARIABLE: Final = "PENSTOCK_CONSOLE_TOKEN"
LISTENER_VARIABLE: Final = "PENSTOCK_CONSOLE_LISTENER"
HOW_TO_GET_IT: Final = "the web console needs more packages: pip install 'penstock[console]'"


def is_installed() -> bool:
    """Whether the packages of the extra `console` are installed."""
    return importlib.util.find_spec("nicegui") is not None


def console(
    namesrv: Annotated[
        str | None, option("--namesrv", "HOST:PORT;…", "The name servers; default: NAMESRV_ADDR.")
    ] = None,
    listen: Annotated[str, option("--listen", "HOST:PORT", f"The console's address; default: {LISTEN}.")] = LISTEN,
    token: Annotated[
        str | None, option("--token", "T", f"The access token; default: {TOKEN_VARIABLE}, or a new one.")
    ] = None,
    name: Annotated[
        list[str] | None, option("--name", "HOST", "A host name that browsers use for it; repeatable.")
    ] = None,
    store: Annotated[Path | None, option("--store", "DIR", "A local store, for the Store page and the jobs.")] = None,
    exports: Annotated[Path | None, option("--exports", "DIR", "The directory for pipeline exports.")] = None,
    config: Annotated[Path | None, option("--config", "FILE", "The store's broker.conf.")] = None,
    account: Annotated[
        Path | None, option("--account", "FILE", "A file with accessKey and secretKey, for a cluster with aclEnable.")
    ] = None,
    trust: Annotated[
        Path | None, option("--trust", "FILE", "Use TLS to the cluster, and trust these certificates (PEM).")
    ] = None,
    master: Annotated[
        str | None, option("--master", "URL", "Spark's master for the jobs; they all run on Spark then.")
    ] = None,
    conf: Annotated[list[str] | None, option("--conf", "K=V", "A Spark setting for the jobs; repeatable.")] = None,
    keep_spark: Annotated[
        int,
        typer.Option(
            "--keep-spark",
            metavar="SECONDS",
            envvar="PENSTOCK_KEEP_SPARK",
            min=0,
            max=86_400,
            help="How long Spark waits for the next job; 0: it ends with each.",
        ),
    ] = KEEP_SPARK_S,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
    under_serve: Annotated[bool, typer.Option("--under-serve", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Run the web console for a RocketMQ cluster.

    The cluster may be Penstock's or Java's. Prints a link that contains the access token. `penstock serve` starts a
    console by itself. Stops on SIGTERM or Ctrl-C. Exit status: 0 stopped; 1 failed; 2 could not start.

    Examples:

    \b
      penstock console --namesrv 127.0.0.1:9876
      penstock console --namesrv 10.0.0.1:9876 --listen 0.0.0.0:8080 --name mq.example.org
    """
    if not is_installed():
        raise MissingPackage(HOW_TO_GET_IT)
    log_to(form=log_format, level=log_level, framework_traces=False)
    log_uncaught()
    from penstock.cli.cluster_connection import client_config
    from penstock.console.console import ConsoleOptions
    from penstock.console.console_login import AccessPolicy, make_token
    from penstock.console.low_memory_imports import without_http_clients
    from penstock.remoting.event_loop import run
    from penstock.remoting.sockets import listen as listen_at
    from penstock.remoting.sockets import parse_address

    with without_http_clients():
        from penstock.console.server import serve
    token = token or os.environ.pop(TOKEN_VARIABLE, "") or make_token()
    spark = [f"--conf={pair}" for pair in conf or ()] + ([f"--master={master}"] if master else [])
    options = ConsoleOptions(
        config=client_config(namesrv, account, trust),
        store=None if store is None else store.absolute(),
        exports=None if exports is None else exports.absolute(),
        broker_conf=None if config is None else config.absolute(),
        spark=tuple(spark),
        keep_spark_s=keep_spark,
    )
    host, port = parse_address(listen, "--listen")
    inherited = os.environ.pop(LISTENER_VARIABLE, "") if under_serve else ""
    bound = socket.socket(fileno=int(inherited)) if inherited else None
    listener = listen_at(host, port, bound)  # bound before the link is printed, so that the link works at once
    address, port = listener.getsockname()[:2]
    gate = AccessPolicy(token, names=[*(name or ()), host], cookie=f"penstock_console_{port}")
    if not under_serve:
        _announce(link(address, port, token), options.config.namesrv, as_json)
    if not run(serve(options, gate, listener, sys.stdin.fileno() if under_serve else None)):
        raise typer.Exit(exit_codes.PROBLEM)


def link(address: str, port: int, token: str) -> str:
    """Returns the console's URL with its token. A wildcard address becomes the loopback address."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    host = f"[{shown}]" if ":" in shown else shown
    return f"http://{host}:{port}/?token={token}"


def _announce(url: str, namesrv: str, as_json: bool) -> None:
    if as_json:
        write_json({"console": url, "namesrv": namesrv})
    else:
        write(f"Console of {namesrv}: {url}\n")
        write_note("anyone with this link has full access.")
    flush()
