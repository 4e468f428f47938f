"""Administration: requests of operators and tools about topics, groups, offsets, clients and the broker itself."""

from __future__ import annotations

from penstock.broker.admin.clients import AdminClients
from penstock.broker.admin.groups import AdminGroups, AdminOffsets, AdminProgress
from penstock.broker.admin.runtime import AdminRuntime, ConfigChange
from penstock.broker.admin.topics import AdminTopics
from penstock.broker.broker_state import BrokerState
from penstock.broker.filters import SqlCompiler
from penstock.broker.long_polling import HeldPulls
from penstock.broker.send_acks import PendingAcks
from penstock.broker.stats import Rates
from penstock.protocol.codes import RequestCode
from penstock.remoting.handlers import Handler


class BrokerAdmin:
    """All concerns of administration. The module `access` decides who may send these requests."""

    def __init__(self, state: BrokerState, held: HeldPulls, acks: PendingAcks, compile_sql: SqlCompiler) -> None:
        self.rates = Rates(state.counters, state.settings.now.broker_cluster_name)
        self._runtime = AdminRuntime(state, self.rates, held, acks)
        self._concerns = (
            AdminTopics(state),
            AdminGroups(state),
            AdminClients(state),
            AdminProgress(state, self.rates, compile_sql),
            AdminOffsets(state),
            self._runtime,
            ConfigChange(state),
        )

    def handlers(self) -> dict[RequestCode, Handler]:
        return {code: handler for concern in self._concerns for code, handler in concern.handlers().items()}

    def sample(self) -> None:
        """Samples the message counters. Call it every `stats.SAMPLE_S` seconds."""
        self.rates.sample()
        self._runtime.days.roll()
