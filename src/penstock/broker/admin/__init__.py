"""Administration: requests of operators and tools about topics, groups, offsets, clients and the broker itself."""

from __future__ import annotations

from penstock.broker.admin.clients import AdminClients
from penstock.broker.admin.groups import AdminGroups, AdminOffsets, AdminProgress
from penstock.broker.admin.runtime import AdminRuntime, ConfigChange
from penstock.broker.admin.topics import AdminTopics
from penstock.broker.broker_state import BrokerState
from penstock.broker.core import ClientRequests, Operation
from penstock.broker.filters import SqlCompiler
from penstock.broker.long_polling import HeldPulls
from penstock.broker.send_acks import PendingAcks
from penstock.broker.stats import Rates


class BrokerAdmin:
    """All concerns of administration. The module `access` decides who may ask for it."""

    def __init__(
        self,
        state: BrokerState,
        held: HeldPulls,
        acks: PendingAcks,
        requests: ClientRequests,
        compile_sql: SqlCompiler,
    ) -> None:
        self.rates = Rates(state.counters, state.settings.now.broker_cluster_name)
        self._runtime = AdminRuntime(state, self.rates, held, acks)
        self._concerns = (
            AdminTopics(state),
            AdminGroups(state),
            AdminClients(state, requests),
            AdminProgress(state, self.rates, compile_sql),
            AdminOffsets(state, requests),
            self._runtime,
            ConfigChange(state),
        )

    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for concern in self._concerns for operation in concern.operations())

    def sample(self) -> None:
        """Samples the message counters. Call it every `stats.SAMPLE_S` seconds."""
        self.rates.sample()
        self._runtime.days.roll()
