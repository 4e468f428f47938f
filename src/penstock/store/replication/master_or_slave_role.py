"""Role: what a store may do in replication, as one frozen value that is exchanged as a whole.

`MessageStore.change_role` exchanges it while the store is open. Everything that depends on the role reads it from the
store (`store.role`) when it needs it, or is notified by `MessageStore.on_role_change`; the setting brokerRole is only
the role at the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.store.settings import BrokerRole


@dataclass(frozen=True, slots=True)
class Role:
    """A role, and the epoch in which it holds. Each change of the role has a higher epoch than the one before."""

    name: BrokerRole
    epoch: int = 0

    def next(self, name: BrokerRole) -> Role:
        """Returns the role `name` in the next epoch."""
        return Role(name, self.epoch + 1)

    @property
    def accepts_puts(self) -> bool:
        return self.name is not BrokerRole.SLAVE

    @property
    def waits_for_slave(self) -> bool:
        """Whether a put waits for the ack of a slave."""
        return self.name is BrokerRole.SYNC_MASTER

    @property
    def takes_replica_bytes(self) -> bool:
        """Whether the log grows by the bytes of a master's log, and not by puts."""
        return self.name is BrokerRole.SLAVE

    @property
    def delivers(self) -> bool:
        """Whether delayed messages are delivered and transactions checked here: both append messages."""
        return self.accepts_puts

    def __str__(self) -> str:
        return str(self.name)
