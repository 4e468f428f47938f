"""Which replicas must have a message before its send is acknowledged, and how the set in the engine changes. Pure.

A master requires every replica that may be in the sync set in the engine. Whoever is elected is in that set, so it has
every acknowledged message. Three rules keep that true:

- *Expand*: a replica is required first. The end of the log is read after that. When the replica has the log up to this
  end, the set is written with it.
- *Shrink*: the set is written without a replica first. When that is certain, the replica is required no more.
- *Unknown*: a set whose write had no answer may be in the engine, now or later. Its replicas stay required until the
  key has another version than the one that this write expected; from then on it cannot be carried out. If the key keeps
  its version, the master writes it once more, which settles the question either way.

`SyncSet` is a value: each step returns another one. The master applies `required` before it attempts what `next_set`
returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.broker.failover.consensus_engine import View


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerState:
    """A replica that follows this master in its epoch, as the master sees it."""

    offset: int
    """The end of the log that it has reported in this epoch."""
    is_connected: bool = True
    behind_s: float = 0.0
    """For how long it has not had all that the log has."""
    is_near: bool = True
    """Whether it lacks so little that sends can wait for it."""
    is_learner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSet:
    """The sync set of a master, and what may be in the engine instead."""

    me: int
    epoch: int
    revision: int = 0
    version: int = 0
    """The version of the key `state` in which `members` was seen."""
    members: frozenset[int] = frozenset()
    attempted: frozenset[int] = frozenset()
    """The replicas of all sets whose write, expecting `version`, had no certain outcome."""
    joining: Mapping[int, int | None] = field(default_factory=dict)
    """Replicas that are required before they are in the set, each with the end of the log that it needs; None until
    they are in fact required."""

    @classmethod
    def of(cls, me: int, view: View) -> SyncSet:
        """Returns the set with which the master `me` begins the epoch in `view`."""
        assert view.state is not None
        return cls(me=me, epoch=view.state.epoch).seen(view)

    @property
    def required(self) -> frozenset[int]:
        """The replicas, this one included, that must have a message before its send is acknowledged."""
        return self.members | self.attempted | self.joining.keys() | {self.me}

    def seen(self, view: View) -> SyncSet:
        """Returns the set after a read of the engine. A view of another epoch, or an older one, is ignored."""
        state = view.state
        if state is None or state.epoch != self.epoch or view.revision < self.revision:
            return self
        if view.state_version == self.version:
            return replace(self, revision=view.revision)
        members = frozenset(state.sync)
        joining = {each: at for each, at in self.joining.items() if each not in members}
        return replace(
            self,
            revision=view.revision,
            version=view.state_version,
            members=members,
            attempted=frozenset(),
            joining=joining,
        )

    def attempt(self, members: Iterable[int]) -> SyncSet:
        """Returns the set from before a write of `members`: they stay required until the outcome is certain."""
        return replace(self, attempted=self.attempted | frozenset(members))

    def follow(self, followers: Mapping[int, FollowerState], limit_s: float) -> SyncSet:
        """Returns the set with the followers that are near required, and the lost ones that only joined dropped.

        A follower is lost if it is not connected, or behind for more than `limit_s` seconds.
        """
        joining = {each: at for each, at in self.joining.items() if not is_lost(followers.get(each), limit_s)}
        for each, follower in followers.items():
            if each not in self.required and follower.is_near and not is_lost(follower, limit_s):
                joining[each] = None
        return self if joining == self.joining else replace(self, joining=joining)

    def applied(self, end: int) -> SyncSet:
        """Returns the set from after `required` is in force. `end` is the end of the log, read after that."""
        if None not in self.joining.values():
            return self
        return replace(self, joining={each: end if at is None else at for each, at in self.joining.items()})

    def next_set(self, followers: Mapping[int, FollowerState], limit_s: float) -> frozenset[int] | None:
        """Returns the set to write to the engine; None if it is right as it is.

        It has the present members and those that have joined with all that they need, but no lost ones.
        """
        reached = {
            each
            for each, at in self.joining.items()
            if at is not None and each in followers and followers[each].offset >= at
        }
        lost = {each for each in self.required - {self.me} if is_lost(followers.get(each), limit_s)}
        wanted = ((self.members | reached | self.attempted) - lost) | {self.me}
        return wanted if wanted != self.members or self.attempted - wanted else None


def is_lost(follower: FollowerState | None, limit_s: float) -> bool:
    """Whether sends should not wait for this follower any longer."""
    return follower is None or not follower.is_connected or follower.is_learner or follower.behind_s > limit_s
