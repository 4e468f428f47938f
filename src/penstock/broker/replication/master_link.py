"""A slave's ordinary requests to its master: where that is, who asks, and one connection that is kept.

The addresses are those of the settings, or else what name servers answer to a registration. Belongs to the loop's
thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings, PenstockError, Unreachable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import sign
from penstock.remoting.addresses import parse_address
from penstock.remoting.connection import Address, Connection
from penstock.remoting.dial import connect
from penstock.remoting.limits import Limits
from penstock.remoting.tls import client_tls
from penstock.store.settings import Settings

ASKED_BY_SLAVES: Final = frozenset(
    {
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
    }
)
"""Administration, but slaves ask it, which read the whole log anyway."""

_WAIT_S: Final = 10.0
_LARGEST_BODY: Final = 64 << 20


class MasterRefused(PenstockError):
    """The master answered, and not what was asked for."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"the master answered {code}: {remark or 'no reason given'}")
        self.code = code


class MasterLink:
    """Knows the master's two addresses, and asks it."""

    def __init__(self, settings: Settings, broker: BrokerSettings) -> None:
        """Raises BadSettings."""
        self._fixed_log = settings.ha_master_address
        self._fixed_clients = broker.master_addr
        if settings.ha_master_address and not (broker.master_addr or broker.name_servers):
            raise BadSettings(
                "haMasterAddress needs masterAddr or namesrvAddr: a slave also asks its master as clients do"
            )
        if settings.ha_master_address:
            parse_address(settings.ha_master_address, "haMasterAddress")
        if broker.master_addr:
            parse_address(broker.master_addr, "masterAddr")
        self._account = None if broker.ha_account_file is None else _read_account(broker.ha_account_file)
        self.tls = client_tls(settings.broker)
        self._told_log = self._told_clients = ""
        self._connection: Connection | None = None
        self.known = asyncio.Event()
        """Set once both addresses are known."""
        self._look()

    # -- where it is -----------------------------------------------------------------------------------------

    def told(self, log_address: str, client_address: str) -> None:
        """What a name server knows of the master; it counts where the settings say nothing."""
        if client_address:
            self._told_clients = client_address
        if log_address:
            self._told_log = log_address
        self._look()

    def _look(self) -> None:
        if self.log_address and self.client_address:
            self.known.set()

    @property
    def log_address(self) -> str:
        """Where the log is to be had; empty if nobody has told."""
        return self._fixed_log or self._told_log

    @property
    def client_address(self) -> str:
        """Where the master answers clients; empty if nobody has told."""
        return self._fixed_clients or self._told_clients

    # -- asking ----------------------------------------------------------------------------------------------

    async def ask(self, code: RequestCode, arguments: Mapping[str, str] | None = None) -> Command:
        """The master's answer. Raises Unreachable, NoAnswer, or MasterRefused if it is no success."""
        command = Command(code, dict(arguments or {}))
        if self._account is not None:
            sign(command, *self._account)
        connection = await self._connect()
        reply = await connection.request(command, _WAIT_S)
        if reply.code != ResponseCode.SUCCESS:
            raise MasterRefused(reply.code, reply.remark or "")
        return reply

    async def _connect(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            where = f"{self._connection.peer[0]}:{self._connection.peer[1]}"
            if where == self.client_address:
                return self._connection
            self._connection.close()
        if not self.client_address:
            raise Unreachable("no name server has told where the master is; set masterAddr, or start the master")
        address: Address = parse_address(self.client_address, "masterAddr")
        self._connection = await connect(address, tls=self.tls, limits=Limits(frame_bytes=_LARGEST_BODY))
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _read_account(path: Path) -> tuple[str, str]:
    """`accessKey: x` and `secretKey: y`, as in mqadmin's tools.yml."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadSettings(
            f"haAccountFile cannot be read: {why}; check its path and who may read it", path=path
        ) from None
    pairs = (re.split(r"\s*[:=]\s*", line.strip(), maxsplit=1) for line in lines)
    found = {pair[0]: pair[1].strip("'\"") for pair in pairs if len(pair) == 2}
    if not found.get("accessKey") or not found.get("secretKey"):
        raise BadSettings("haAccountFile needs the lines accessKey: … and secretKey: …", path=path)
    return found["accessKey"], found["secretKey"]
