"""Where two logs part: found by their epochs, without a look at their bytes.

Two logs that both have an entry (epoch, start) had the same bytes when that epoch began, and one master wrote the bytes
of the epoch. So they are the same up to the end of the newest common epoch in the log in which it ends earlier. This
rests on two rules: an epoch has one master, and a replica that follows a master takes its epochs over before its bytes.

What lies before the first epoch of a log was written before the log had epochs. Two logs without a common epoch may
still be the same up to the first epoch of either one; only their bytes can show that (`Common.is_proved`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.replication.epochs import Entries


class LogHistory(NamedTuple):
    """The epochs of a log, and the physical offsets at which it begins and ends."""

    entries: Entries
    begin: int
    end: int

    def end_of(self, number: int) -> int:
        """Physical offset at which the epoch of this entry ends, as far as the log reaches."""
        following = self.entries[number + 1].start if number + 1 < len(self.entries) else self.end
        return min(following, self.end)


class Common(NamedTuple):
    """How far two logs are the same."""

    end: int
    """Physical offset up to which they are; 0 if nothing is known to be the same."""
    is_proved: bool
    """Whether a common epoch proves it. If not, the last record before `end` must be compared."""


def find_common(own: LogHistory, masters: LogHistory) -> Common:
    """Returns up to which physical offset both logs are the same. What `own` has after it has to be cut."""
    numbers = {entry: number for number, entry in enumerate(masters.entries)}
    for number in range(len(own.entries) - 1, -1, -1):
        theirs = numbers.get(own.entries[number])
        if theirs is not None:
            return Common(min(own.end_of(number), masters.end_of(theirs)), is_proved=True)
    firsts = (history.entries[0].start if history.entries else history.end for history in (own, masters))
    return Common(min(own.end, masters.end, *firsts), is_proved=False)
