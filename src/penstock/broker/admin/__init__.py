"""Administration: requests of operators and tools about topics, groups, offsets, clients and the broker itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from penstock.broker.admin.clients import AdminClients
from penstock.broker.admin.config_change import ConfigChange
from penstock.broker.admin.groups import AdminGroups, AdminOffsets, AdminProgress
from penstock.broker.admin.runtime import AdminRuntime
from penstock.broker.admin.topics import AdminTopics
from penstock.broker.filters import SqlCompiler
from penstock.broker.long_polling import HeldPulls
from penstock.broker.operations_as_plain_calls import ClientRequests, Operation
from penstock.broker.send_acks import PendingAcks
from penstock.broker.stats import Rates
from penstock.broker.table_persistence import BrokerState
from penstock.format.constants import SCHEDULE_TOPIC
from penstock.store.message_store import MessageStore


def _delayed(store: MessageStore) -> int:
    """Returns how many delayed messages were ever stored."""
    queues = (store.queues.find(SCHEDULE_TOPIC, number) for number in range(len(store.settings.delay_levels)))
    return sum(queue.max_offset for queue in queues if queue is not None)


class BrokerAdmin:
    """All concerns of administration. The module `access` decides who may ask for it."""

    def __init__(
        self,
        state: BrokerState,
        held: HeldPulls,
        acks: PendingAcks,
        requests: ClientRequests,
        compile_sql: SqlCompiler,
        derived: Mapping[str, str],
        *,
        max_message_size: int,
    ) -> None:
        """For `derived` and `max_message_size` see `ConfigChange`."""
        delayed = partial(_delayed, state.store)
        self.rates = Rates(state.counters, state.settings.now.broker_cluster_name, delayed=delayed)
        self._runtime = AdminRuntime(state, self.rates, held, acks)
        self._concerns = (
            AdminTopics(state),
            AdminGroups(state),
            AdminClients(state, requests),
            AdminProgress(state, self.rates, compile_sql),
            AdminOffsets(state, requests),
            self._runtime,
            ConfigChange(state, derived, max_message_size),
        )

    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for concern in self._concerns for operation in concern.operations())

    def sample(self) -> None:
        """Samples the message counters. Call it every `stats.SAMPLE_S` seconds."""
        self.rates.sample()
        self._runtime.sample()
