"""`penstock namesrv`: a name server on its own."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Annotated

from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import flush, say, write, write_json
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import parse_address

_GRACE_S = 3.0


def namesrv(
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "Where to listen; port 0 is any that is free.")
    ] = None,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """A name server: tells clients which brokers have a topic.

    `penstock serve` has one inside; this one is for several brokers. It listens at 127.0.0.1:9876 unless told
    otherwise, prints where, and stops on SIGTERM or Ctrl-C. Brokers may register from this machine only, unless
    registerBrokerFrom names others.

    Examples:

    \b
      penstock namesrv
      penstock namesrv --listen 0.0.0.0:9876 --set registerBrokerFrom=10.0.0.0/8
    """
    settings = NamesrvSettings.load(config, pairs or ())
    host, port = ("127.0.0.1", settings.listen_port) if listen is None else parse_address(listen, "--listen")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    run(_serve(settings, host, port, as_json))


async def _serve(settings: NamesrvSettings, host: str, port: int, as_json: bool) -> None:
    """Until a signal comes."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = NameServer(settings)
    where = await server.start(host, port)
    for note in (*settings.notes(), *filter(None, [server.kv.note])):
        say(note)
    address = f"[{where[0]}]:{where[1]}" if ":" in where[0] else f"{where[0]}:{where[1]}"
    if as_json:
        write_json({"namesrv": address})
    else:
        write(f"The name server listens at {address}; clients find it with NAMESRV_ADDR={address}\n")
    flush()
    await stop.wait()
    await server.stop(_GRACE_S)
