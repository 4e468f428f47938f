"""Memory budgets: what clients may take of a server's tables, in bytes, per client and in sum.

A table that clients can grow charges each entry to its budget and releases it when the entry goes. The sizes are
estimates that are rather too high. `docs/explanation/security.md` lists all budgets. Use a budget from one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from penstock.protocol.codes import Refusal, ResponseCode

ENTRY_BYTES: Final = 512
"""What an entry of a table takes besides its texts."""


def entry_bytes(*texts: str) -> int:
    """Returns an estimate of the memory of an entry with these texts."""
    return ENTRY_BYTES + 2 * sum(map(len, texts))


class Closing(Protocol):
    """A client whose end is noticed."""

    on_close: list[Callable[[Any], None]]

    def __hash__(self) -> int: ...


class Budget:
    """The bytes that clients have taken of one table. `per_client` is None if the table outlives its clients."""

    def __init__(self, what: str, in_all: int, per_client: int | None = None, client: str = "connection") -> None:
        """`what` and `client` are the nouns of the error: the `what` of one `client` may take so much."""
        self.what = what
        self.in_all = in_all
        self.per_client = per_client
        self.used = 0
        self._client = client
        self._by_client: Counter[Hashable] = Counter()

    def charge(self, size: int, client: Hashable = None) -> None:
        """Charges bytes to a client; releases them if `size` is negative. Raises Refusal if a limit is exceeded."""
        if size > 0:
            self.check(size, client)
        self.count(size, client)

    def check(self, size: int, client: Hashable = None) -> None:
        """Raises Refusal if `size` more bytes of a client would exceed a limit."""
        if self.per_client is not None and self._by_client[client] + size > self.per_client:
            why = f"the {self.what} of one {self._client} may take {self.per_client >> 20} MiB"
            raise Refusal(ResponseCode.SYSTEM_BUSY, why)
        if self.used + size > self.in_all:
            why = f"the {self.what} of all {self._client}s may take {self.in_all >> 20} MiB"
            raise Refusal(ResponseCode.SYSTEM_BUSY, why)

    def count(self, size: int, client: Hashable = None) -> None:
        """Like `charge`, but without a limit: for what is there already, as in a file that was read."""
        self.used += size
        if self.per_client is not None:
            self._by_client[client] += size
            if self._by_client[client] <= 0:
                del self._by_client[client]

    def charge_until_close(self, size: int, client: Closing) -> None:
        """Charges bytes to a client until it closes its connection: for entries that stay, of which one client shall
        not make all. Raises Refusal if a limit is exceeded.
        """
        is_first = client not in self._by_client
        self.charge(size, client)
        if is_first:
            client.on_close.append(self._forget)

    def _forget(self, client: Closing) -> None:
        self.used -= self._by_client.pop(client, 0)

    @contextmanager
    def charged(self, size: int, client: Hashable = None) -> Iterator[None]:
        """Charges bytes to a client within a context. Raises Refusal if a limit is exceeded."""
        self.charge(size, client)
        try:
            yield
        finally:
            self.count(-size, client)
