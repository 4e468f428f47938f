"""`penstock namesrv`: a name server as its own process."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

from penstock.cli.logs import log_to
from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import flush, write, write_json, write_note
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import parse_address

_GRACE_S = 3.0


def namesrv(
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "The address to listen at; port 0: any free port.")
    ] = None,
    config: Config = None,
    pairs: Pairs = None,
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
    settings = NamesrvSettings.load(config, pairs or ())
    host, port = ("127.0.0.1", settings.listen_port) if listen is None else parse_address(listen, "--listen")
    log_to()
    run(_serve(settings, host, port, as_json))


async def _serve(settings: NamesrvSettings, host: str, port: int, as_json: bool) -> None:
    """Serves until a signal arrives."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = NameServer(settings)
    listening = await server.start(host, port)
    for note in (*settings.notes(), *filter(None, [server.kv.note])):
        write_note(note)
    address = f"[{listening[0]}]:{listening[1]}" if ":" in listening[0] else f"{listening[0]}:{listening[1]}"
    if as_json:
        write_json({"namesrv": address})
    else:
        write(f"The name server listens at {address}; clients connect with NAMESRV_ADDR={address}\n")
    flush()
    await stop.wait()
    await server.stop(_GRACE_S)
