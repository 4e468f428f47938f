"""Which sealed requests were seen: a recorded one that is sent again is refused.

A client that seals its requests (`protocol.signing`) numbers them, in a session of its own. For each session the guard
keeps the highest number and which of the WINDOW numbers below it were seen; requests may overtake each other that far.
A session is forgotten when its requests are too old anyway. Sessions have a budget for each account. After a restart
nothing is known: a request of the last MAX_AGE_MS can then be sent again, once. Use it from the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.clock import now_ms
from penstock.protocol.table_memory_limits import Budget

MAX_AGE_MS: Final = 300_000
"""How far the clocks of a client and the broker may differ."""
WINDOW: Final = 16_384
MAX_BYTES: Final = 64 << 20
MAX_BYTES_OF_ACCOUNT: Final = 32 << 20
_SESSION_BYTES: Final = 512 + WINDOW // 8
_PRUNE_EVERY_MS: Final = 10_000


class _Session:
    __slots__ = ("account", "highest", "newest_ms", "seen")

    def __init__(self, account: str) -> None:
        self.account = account
        self.highest = 0
        self.newest_ms = 0
        self.seen = 0
        """Bit n is set if the number `highest` - n was seen."""


class ReplayGuard:
    """The sessions of clients that seal their requests."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._pruned_ms = 0
        self.budget = Budget("sessions of sealed requests", MAX_BYTES, MAX_BYTES_OF_ACCOUNT, "account")

    def refusal(self, account: str, session: str, number: int, time_ms: int) -> str:
        """Returns why a sealed and signed request is refused; an empty string if it is new, and it counts as seen.

        Raises Refusal if the account has too many sessions.
        """
        now = self._clock()
        if abs(now - time_ms) > MAX_AGE_MS:
            return (
                f"it was signed {abs(now - time_ms) // 1000} s {'ago' if time_ms < now else 'ahead'} by this broker's "
                "clock: it was recorded and sent again, or a clock is wrong"
            )
        known = self._sessions.get((account, session)) or self._add(account, session, now)
        known.newest_ms = max(known.newest_ms, time_ms)
        ahead = number - known.highest
        if ahead > 0:
            known.seen = ((known.seen << ahead) if ahead < WINDOW else 0) & _MASK | 1
            known.highest = number
            return ""
        bit = 1 << -ahead if -ahead < WINDOW else 0
        if not bit or known.seen & bit:
            return "a request with its number was here before: it was recorded and sent again"
        known.seen |= bit
        return ""

    def _add(self, account: str, session: str, now: int) -> _Session:
        if now - self._pruned_ms >= _PRUNE_EVERY_MS:
            self._pruned_ms = now
            for key, each in list(self._sessions.items()):
                if each.newest_ms < now - MAX_AGE_MS:
                    del self._sessions[key]
                    self.budget.charge(-_SESSION_BYTES, each.account)
        self.budget.charge(_SESSION_BYTES, account)
        added = self._sessions[account, session] = _Session(account)
        return added


_MASK: Final = (1 << WINDOW) - 1
