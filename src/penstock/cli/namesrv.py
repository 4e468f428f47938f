"""`penstock namesrv`: a name server as its own process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated, Final

from penstock import __version__
from penstock.cli.log_output import (
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    errors_as_log,
    log_to,
    log_uncaught,
)
from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import flush, write, write_json

if TYPE_CHECKING:
    from penstock.namesrv import NamesrvSettings

_GRACE_S = 3.0
OFF: Final = "off"
log = logging.getLogger("penstock.serve")


def namesrv(
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "The address to listen at; port 0: any free port.")
    ] = None,
    config: Config = None,
    pairs: Pairs = None,
    observe_port: Annotated[
        str, option("--observe-port", "[HOST:]PORT|off", "Port for /metrics, /healthz and /readyz; default: off.")
    ] = OFF,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
    as_json: AsJson = False,
) -> None:
    """Run a name server, for several brokers.

    `penstock serve` includes one for a single broker. It listens at 127.0.0.1:9876 by default, prints its address, and
    stops on SIGTERM or Ctrl-C. Only brokers on this machine may register, unless registerBrokerFrom allows others.

    Examples:

    \b
      penstock namesrv
      penstock namesrv --listen 0.0.0.0:9876 --set registerBrokerFrom=10.0.0.0/8
    """
    from penstock.broker.settings import observe_address
    from penstock.namesrv import NamesrvSettings
    from penstock.remoting.event_loop import run
    from penstock.remoting.sockets import parse_address

    log_to(form=log_format, level=log_level)
    with errors_as_log(log_format):
        settings = NamesrvSettings.load(config, pairs or ())
        host, port = ("127.0.0.1", settings.listen_port) if listen is None else parse_address(listen, "--listen")
        observe_at = observe_address(observe_port, "--observe-port")
        log_uncaught()
        run(_serve(settings, host, port, observe_at, as_json))


async def _serve(
    settings: NamesrvSettings, host: str, port: int, observe_at: tuple[str, int] | None, as_json: bool
) -> None:
    """Serves until a signal arrives."""
    from penstock.broker.operations_as_plain_calls import host_text
    from penstock.namesrv import NameServer
    from penstock.namesrv.metrics_and_health import NameServerObservation
    from penstock.observation.http_responder import answering
    from penstock.remoting.sockets import bind

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = NameServer(settings)
    observed = None if observe_at is None else bind(*observe_at)
    with answering(observed, NameServerObservation(server).answer) as observe_url:
        listening = await server.start(host, port)
        for note in (*settings.notes(), *filter(None, [server.kv.note])):
            log.warning("%s", note)
        _announce(host_text(*listening), observe_url, as_json)
        await stop.wait()
        log.info("stopping")
        await server.stop(_GRACE_S)
    log.info("stopped")


def _announce(address: str, observe_url: str, as_json: bool) -> None:
    if as_json:
        write_json({"namesrv": address, "observe": observe_url})
    else:
        write(f"The name server listens at {address}; clients connect with NAMESRV_ADDR={address}\n")
        write(f"Metrics: {observe_url}/metrics (and /healthz, /readyz)\n" if observe_url else "")
    flush()
    watched = observe_url or OFF
    log.info(
        "Penstock %s listens: name server %s, metrics and health %s, process %d",
        __version__,
        address,
        watched,
        os.getpid(),
    )
