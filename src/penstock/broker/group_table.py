"""The consumer groups of this broker: subscriptionGroup.json in memory.

As with topics, every change moves the data version on and calls `on_change`; a crash before the file is written leaves
the older one, and the group is made again by its next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from penstock.broker.settings import SettingsInForce
from penstock.broker.system_topics import is_system_group, retry_topic, system_groups
from penstock.format.config_tables import DataVersion, SubscriptionGroup, SubscriptionGroups
from penstock.format.topics import is_legal_topic

log = logging.getLogger("penstock.broker")


def is_legal_group(group: str) -> bool:
    """Whether a group may have this name: its retry topic bears it, too."""
    return bool(group) and is_legal_topic(retry_topic(group))


class GroupTable:
    """Finds, makes, changes and deletes consumer groups."""

    def __init__(self, loaded: SubscriptionGroups, settings: SettingsInForce, clock: Callable[[], int]) -> None:
        self._settings = settings
        self._clock = clock
        self._extra = loaded.extra
        self._version = loaded.version
        self._groups = {**{group.name: group for group in system_groups()}, **loaded.groups}
        self.on_change: list[Callable[[], object]] = []

    def find(self, group: str) -> SubscriptionGroup | None:
        return self._groups.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroup | None:
        """The group; made if it is new and consumers may do that, else None."""
        known = self._groups.get(group)
        if known is not None:
            return known
        if not (self._settings.now.auto_create_subscription_group or is_system_group(group)):
            return None
        if not is_legal_group(group):
            return None
        if len(self._groups) >= self._settings.now.max_groups:
            log.warning("group %s is not made: there are %d already (maxGroups)", group, len(self._groups))
            return None
        made = SubscriptionGroup(name=group)
        log.info("consumer group %s is made", group)
        self.update(made)
        return made

    def all(self) -> Mapping[str, SubscriptionGroup]:
        return self._groups

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def snapshot(self) -> SubscriptionGroups:
        """What subscriptionGroup.json should say now."""
        return SubscriptionGroups(groups=dict(self._groups), version=self._version, extra=self._extra)

    def update(self, group: SubscriptionGroup) -> None:
        """Makes or replaces a group; fields that this version does not know stay as they were."""
        known = self._groups.get(group.name)
        if known is not None and not group.extra:
            group = msgspec.structs.replace(group, extra=known.extra)
        self._groups[group.name] = group
        self._changed()

    def delete(self, group: str) -> bool:
        """Forgets a group; says whether there was one."""
        if self._groups.pop(group, None) is None:
            return False
        log.info("consumer group %s is deleted", group)
        self._changed()
        return True

    def take_over(self, groups: SubscriptionGroups) -> None:
        """Becomes what a master's table is, its version included."""
        if groups.version != self._version or groups.groups != self._groups:
            self._groups, self._version = dict(groups.groups), groups.version
            self._tell()

    def _changed(self) -> None:
        self._version = self._version.next(self._clock())
        self._tell()

    def _tell(self) -> None:
        for changed in self.on_change:
            changed()
