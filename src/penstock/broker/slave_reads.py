"""From which broker of its name a consumer should pull: the master, or a slave while it is far behind.

With slaveReadEnable a master sends a consumer to the broker that its group names (whichBrokerWhenConsumeSlowly) when
what it reads is likely not in memory any more, and back otherwise. A slave serves whoever comes, as RocketMQ's do;
without slaveReadEnable it suggests the master for the next pull. A slave that has less than a consumer has seen does
not correct it, unless offsetCheckInSlave is true: the master may know better, or the rest is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.settings import SettingsInForce
from penstock.format.config_tables import SubscriptionGroup
from penstock.store.status import Page

_MASTER: Final = 0


class SlaveReads:
    """Asked by every pull; `follows` says of a slave whether its master is there, and is None for a master."""

    def __init__(
        self, settings: SettingsInForce, follows: Callable[[], bool] | None = None, *, corrects: bool = True
    ) -> None:
        self._settings = settings
        self._follows = follows
        self.corrects = corrects or follows is None
        """Whether consumers are told that their offset is none of the queue's."""

    @property
    def suggests(self) -> bool:
        """Whether answers may name another broker than the master."""
        return self._settings.now.slave_read_enable

    @property
    def takes_offsets(self) -> bool:
        """Whether a pull may commit: a slave's offsets are its master's, unless that is gone."""
        return self._follows is None or not self._follows()

    def suggested(self, group: SubscriptionGroup | None, page: Page) -> int:
        """The id of the broker to pull from next."""
        if group is None or not self._settings.now.slave_read_enable:
            return _MASTER
        return group.which_broker_when_consume_slowly if page.suggest_slave else group.broker_id
