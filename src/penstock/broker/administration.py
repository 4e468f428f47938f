"""All that answers administrators, put together, and what it does by itself."""

from __future__ import annotations

from penstock.broker.admin_clients import AdminClients
from penstock.broker.admin_groups import AdminGroups
from penstock.broker.admin_offsets import AdminOffsets
from penstock.broker.admin_progress import AdminProgress
from penstock.broker.admin_runtime import AdminRuntime
from penstock.broker.admin_topics import AdminTopics
from penstock.broker.config_change import ConfigChange
from penstock.broker.flow import UnflushedSends
from penstock.broker.hold import HeldPulls
from penstock.broker.rates import Rates
from penstock.broker.selection import SqlCompiler
from penstock.broker.state import BrokerState
from penstock.protocol.codes import RequestCode
from penstock.remoting.handlers import Handler


class Administration:
    """The concerns of administration. Who may use them is decided elsewhere: see `access`."""

    def __init__(
        self, state: BrokerState, held: HeldPulls, unflushed: UnflushedSends, compile_sql: SqlCompiler
    ) -> None:
        self.rates = Rates(state.tally, state.settings.now.broker_cluster_name)
        self._runtime = AdminRuntime(state, self.rates, held, unflushed)
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
        """To be called every `rates.SAMPLE_S` seconds."""
        self.rates.sample()
        self._runtime.days.look()
