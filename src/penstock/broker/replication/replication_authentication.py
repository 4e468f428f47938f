"""Tickets for the replication port, and the proof that a master gives to its slaves.

The replication protocol is RocketMQ's and has no authentication. So where access is controlled, a slave first sends an
ordinary request to the master, signed by an administrator's account, which names the port of its host from which it is
going to connect. It has bound this port, so no other process of the host can use it. The ticket admits one connection
from this host and port, once, for TICKET_S seconds.

The answer proves to the slave that the master knows the secret of the same account: an HMAC over random numbers of both
sides, the address at which the slave has reached the master, the slave's port, and the address from which the master
sends its log. An impostor that passes the question on to the master gets a proof for the master's address, not for its
own. Use everything here from the loop's thread only.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from penstock.broker.access import Access
from penstock.broker.operations_as_plain_calls import Client, Operation, administration, host_text
from penstock.errors import PenstockError
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import Follow, FollowReply
from penstock.protocol.signing import master_proof

TICKET_S: Final = 15.0
MAX_TICKETS: Final = 256
"""Limit of the tickets that are valid at a time. Only administrators get tickets."""


class NoMasterProof(PenstockError):
    """The broker that a slave is to follow did not prove that it knows the secret of the slave's account."""


class FollowTickets:
    """Gives tickets to slaves, and takes them back when they connect."""

    def __init__(self, access: Access | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._until: dict[tuple[str, int], float] = {}
        """The time at which each ticket ends, by the host and port that it is for."""
        self.ha_address = ""
        """Where slaves connect to; empty if they cannot."""

    def operations(self) -> tuple[Operation, ...]:
        return (administration("follow", self.give, for_slaves=True),)

    def give(self, client: Client, request: Follow) -> FollowReply:
        """Gives a ticket for a port of the client's host, and the proof. Raises Refusal if there are too many."""
        if request.port:
            self._drop_expired()
            if len(self._until) >= MAX_TICKETS:
                raise Refusal(ResponseCode.SYSTEM_BUSY, f"{MAX_TICKETS} tickets for slaves are valid already")
            self._until[client.peer[0], request.port] = self._clock() + TICKET_S
        reply = FollowReply(nonce=secrets.token_hex(16), ha_address=self.ha_address)
        account = None if self._access is None else self._access.accounts.by_key.get(request.access_key or "")
        if account is not None:
            reply.proof = proof_of(account.secret_key, request, reply, client.local)
        return reply

    def take(self, host: str, port: int) -> bool:
        """Whether there is a ticket for this host and port. It is used up."""
        self._drop_expired()
        return self._until.pop((host, port), None) is not None

    def _drop_expired(self) -> None:
        now = self._clock()
        self._until = {place: until for place, until in self._until.items() if until > now}


def proof_of(secret_key: str, request: Follow, reply: FollowReply, master: tuple[str, int]) -> str:
    """Returns the proof in an answer of the master whose address is `master`."""
    places = host_text(*master), str(request.port), reply.ha_address
    return master_proof(secret_key, request.nonce, reply.nonce, *places)


def check_proof(secret_key: str, request: Follow, reply: FollowReply, master: tuple[str, int]) -> None:
    """Raises NoMasterProof unless the broker at the address `master` has proved that it knows the secret."""
    expected = proof_of(secret_key, request, reply, master)
    if not hmac.compare_digest(reply.proof.encode("utf-8", "replace"), expected.encode()):
        where = host_text(*master)
        raise NoMasterProof(
            f"the broker at {where} did not prove that it knows the secret of this slave's account (haAccountFile): it "
            "is not the master, or it has another address there than this slave sees; nothing is copied; a RocketMQ "
            "master cannot prove it, for which haMasterProof=off is needed"
        )
