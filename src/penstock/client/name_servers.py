"""Asking name servers: any of them for what they know, all of them for what they are to change.

The one that answered last is asked first, so that a name server that is down costs one failed attempt, not one each
time. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from penstock.client.pool import ConnectionPool
from penstock.errors import NoAnswer, Refused, Unreachable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

OK: Final = frozenset({ResponseCode.SUCCESS})


class NameServers:
    """The name servers of one cluster."""

    def __init__(
        self,
        addresses: Sequence[str],
        pool: ConnectionPool,
        timeout_s: float,
        sign: Callable[[Command], None],
    ) -> None:
        self._addresses = list(addresses)
        self._pool = pool
        self._timeout_s = timeout_s
        self._sign = sign
        self._first = 0

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    async def ask(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b"", *, good: Collection[int] = OK
    ) -> Command:
        """The answer of one of them. Raises Unreachable if none answers, Refused if it is not a `good` one."""
        failures = []
        for turn in range(len(self._addresses)):
            number = (self._first + turn) % len(self._addresses)
            address = self._addresses[number]
            try:
                reply = await self._ask(address, code, ext, body)
            except (Unreachable, NoAnswer) as error:
                failures.append(str(error))
                continue
            self._first = number
            return accepted(reply, code, address, good)
        raise Unreachable(f"no name server answers: {'; '.join(failures)}; check the address, and that one runs there")

    async def ask_all(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b"", *, good: Collection[int] = OK
    ) -> dict[str, Command]:
        """The answers of all of them, by address. Raises at the first that does not answer well."""
        replies = {}
        for address in self._addresses:
            replies[address] = accepted(await self._ask(address, code, ext, body), code, address, good)
        return replies

    async def _ask(self, address: str, code: RequestCode, ext: dict[str, str], body: bytes) -> Command:
        connection = await self._pool.get(address)
        command = Command(code, dict(ext), body)
        self._sign(command)
        return await connection.request(command, self._timeout_s)


def accepted(reply: Command, code: RequestCode, address: str, good: Collection[int] = OK) -> Command:
    """The reply, if its code is a good one. Raises Refused."""
    if reply.code in good:
        return reply
    try:
        name = ResponseCode(reply.code).name
    except ValueError:
        name = f"code {reply.code}"
    remark = " ".join((reply.remark or "no reason given").split())
    raise Refused(f"{address} answered {code.name} with {name}: {remark}", code=reply.code, remark=reply.remark or "")
