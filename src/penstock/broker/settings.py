"""The broker's settings: one frozen, typed object with RocketMQ 4.9.8's names and defaults.

    BrokerSettings()
    BrokerSettings.of(Settings.load("broker.conf", ["brokerName=broker-b"]))

The broker's and the store's settings share broker.conf. The store's `Settings` reads the file and the `--set
name=value` options, and keeps the broker's values as text; `BrokerSettings.of` parses those. An instance is always
valid and immutable: an invalid value raises BadSettings with one sentence. `SettingsInForce` holds the current
instance. Update the reference page with `python -m penstock.config.reference_pages docs/reference/broker-settings.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from penstock.config.setting_parser import LONG_MAX, Origin, Section, SettingTable
from penstock.errors import BadSettings
from penstock.format.topics import is_legal_topic
from penstock.remoting.sockets import parse_address
from penstock.remoting.tls import CLIENT_NAMES, SERVER_NAMES
from penstock.store.settings import Settings

IDENTITY = Section("Identity")
REGISTER = Section("Name servers")
TOPICS = Section("Topics and groups")
SEND = Section("Sending")
PULL = Section("Pulling and offsets")
FILTER = Section("Filters")
TRANSACTION = Section("Transactions")
TRACE = Section("Trace and access")
NETWORK = Section("Network")
OURS = Section("Penstock's own", Origin.PENSTOCK)
FAILOVER = Section("Failover", Origin.PENSTOCK)

_REGISTER_PERIOD_MS: Final = (10_000, 60_000)
DCS_TLS_NAMES: Final = ("dcs.tls.trustCertPath", "dcs.tls.certPath", "dcs.tls.keyPath", "dcs.tls.keyPassword")
"""TLS to the consensus engine: certificates that it is checked against, and the broker's own, as PEM files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """RocketMQ's broker settings, and a few of Penstock's own."""

    broker_name: Annotated[str, IDENTITY("name of this broker, by which clients know its queues")] = "broker-a"
    broker_cluster_name: Annotated[str, IDENTITY("name of its cluster")] = "DefaultCluster"
    broker_id: Annotated[int, IDENTITY("0 for a master, more for a slave")] = 0
    broker_ip2: Annotated[
        str | None,
        IDENTITY(
            "address on which a master listens for slaves; unset: this machine's own, 127.0.0.1", name="brokerIP2"
        ),
    ] = None
    broker_permission: Annotated[
        int, IDENTITY("what clients may do here, a sum: 2 write, 4 read; sends or pulls are refused without it", high=7)
    ] = 6
    region_id: Annotated[str, IDENTITY("`MSG_REGION` in every answer to a send")] = "DefaultRegion"

    namesrv_addr: Annotated[str | None, REGISTER("name servers to register with, `host:port` joined by `;`")] = None
    register_broker_timeout_mills: Annotated[int, REGISTER("longest wait for a name server, ms", low=1)] = 6000
    register_name_server_period: Annotated[
        int, REGISTER("how often to register, ms; kept within 10 to 60 seconds", low=1)
    ] = 30_000
    compressed_register: Annotated[bool, REGISTER("register with a compressed body")] = False

    auto_create_topic_enable: Annotated[bool, TOPICS("a send may create its topic, from the template TBW102")] = True
    default_topic_queue_nums: Annotated[int, TOPICS("queues of that template", low=1, high=4096)] = 8
    cluster_topic_enable: Annotated[bool, TOPICS("the topic named like the cluster may be read and written")] = True
    broker_topic_enable: Annotated[bool, TOPICS("the topic named like the broker may be read and written")] = True
    auto_create_subscription_group: Annotated[bool, TOPICS("a consumer may create its group")] = True
    notify_consumer_ids_changed_enable: Annotated[
        bool, TOPICS("consumers are notified at once when another one of their group comes or goes")
    ] = True

    start_accept_send_request_time_stamp: Annotated[
        int, SEND("sends are refused before this time, epoch ms", high=LONG_MAX)
    ] = 0
    store_reply_message_enable: Annotated[bool, SEND("an answer to a request is stored as well as pushed")] = True

    long_polling_enable: Annotated[bool, PULL("a pull that finds nothing waits as long as its client says")] = True
    short_polling_time_mills: Annotated[int, PULL("how long it waits otherwise, ms")] = 1000
    flush_consumer_offset_interval: Annotated[int, PULL("period of writing consumerOffset.json, ms", low=1)] = 5000
    slave_read_enable: Annotated[
        bool, PULL("a master sends consumers that are far behind to a slave, and a slave keeps them")
    ] = False

    enable_property_filter: Annotated[bool, FILTER("consumers may filter by SQL92")] = False

    reject_transaction_message: Annotated[bool, TRANSACTION("refuse transactional messages")] = False
    transaction_time_out: Annotated[int, TRANSACTION("age at which a producer is first asked, ms")] = 6000
    transaction_check_max: Annotated[int, TRANSACTION("how often a producer is asked at most")] = 15
    transaction_check_interval: Annotated[int, TRANSACTION("period of asking, ms", low=1)] = 60_000

    trace_on: Annotated[bool, TRACE("`TRACE_ON` in every answer to a send: clients may trace")] = True
    trace_topic_enable: Annotated[bool, TRACE("create the topic for traces")] = False
    msg_trace_topic_name: Annotated[str, TRACE("its name")] = "RMQ_SYS_TRACE_TOPIC"
    acl_enable: Annotated[bool, TRACE("only accounts of the access file, `aclFile`, may do what it grants them")] = (
        False
    )

    server_channel_max_idle_time_seconds: Annotated[
        int, NETWORK("idle time after which a connection is closed", low=1)
    ] = 120

    register_broker_from: Annotated[
        str, OURS("where other brokers may register from: `loopback`, `any`, or networks joined by `,`")
    ] = "loopback"
    acl_change_enable: Annotated[
        bool,
        OURS("administrators may change the file `aclFile` over the network, as with `mqadmin updateAclConfig`"),
    ] = False
    acl_file: Annotated[
        Path | None, OURS("the accounts, a file of the shape of RocketMQ's plain_acl.yml; read again when it changes")
    ] = None
    plain_administration: Annotated[
        bool, OURS("with `aclEnable`, other hosts may administer over connections without TLS")
    ] = False
    ha_allow_from: Annotated[
        str, OURS("where slaves may follow from: `loopback`, `any`, or networks joined by `,`")
    ] = "loopback"
    ha_account_file: Annotated[
        Path | None, OURS("a slave's account at its master, where that has `aclEnable`: lines accessKey and secretKey")
    ] = None
    ha_master_proof: Annotated[
        str,
        OURS(
            "whether a slave follows only a master that proves that it knows the secret of `haAccountFile`: "
            "`required`, `off` (as for a RocketMQ master), or `auto`: required where the slave has `aclEnable`"
        ),
    ] = "auto"
    master_addr: Annotated[
        str | None, OURS("where a slave's master answers clients, `host:port`; unset: asked from the name servers")
    ] = None
    max_topics: Annotated[int, OURS("topics there may be; no request creates more", low=1)] = 100_000
    max_groups: Annotated[int, OURS("consumer groups there may be; no request creates more", low=1)] = 100_000
    max_held_pulls: Annotated[int, OURS("pulls of one connection that wait for messages", low=1)] = 20_000
    max_unflushed_sends: Annotated[
        int, OURS("sends of one connection that wait for the disk under SYNC_FLUSH; more answer SYSTEM_BUSY", low=1)
    ] = 10_000
    observe_port: Annotated[
        str | None,
        OURS(
            "where `penstock serve` answers `/metrics`, `/healthz` and `/readyz`: a port of 127.0.0.1, `host:port`, or "
            "`off`",
            shown="2 above the broker's port",
        ),
    ] = None
    stop_limit_millis: Annotated[int, OURS("longest time from SIGTERM to a clean end, ms", low=1)] = 15_000

    failover: Annotated[
        str,
        FAILOVER(
            "who decides which broker of a name is the master: `off`, the setting brokerRole; or an engine, `etcd` or "
            "`zookeeper`, in which the brokers elect it"
        ),
    ] = "off"
    dcs_addr: Annotated[str | None, FAILOVER("addresses of the engine's nodes, `host:port` joined by `;`")] = None
    dcs_prefix: Annotated[str, FAILOVER("where the brokers' keys are; cluster and broker name follow")] = "/penstock"
    dcs_account_file: Annotated[
        Path | None, FAILOVER("the account at the engine, if it needs one: lines `user: ...` and `password: ...`")
    ] = None
    failover_ttl_millis: Annotated[
        int,
        FAILOVER("time after which a master that is silent is replaced, ms; whole seconds", low=2000, high=60_000),
    ] = 6000
    failover_fast: Annotated[
        bool,
        FAILOVER(
            "replace a master at once if its machine refuses connections to its ports; off where brokers are reached "
            "through proxies"
        ),
    ] = True
    all_ack_in_sync_state_set: Annotated[
        bool,
        FAILOVER("a send is acknowledged when every replica that may become master has it; false: when it is stored"),
    ] = True
    ha_max_time_slave_not_catchup: Annotated[
        int, FAILOVER("time after which a slave that is behind is not waited for any more, ms", low=100)
    ] = 3000
    async_learner: Annotated[bool, FAILOVER("this broker is never waited for and never elected")] = False
    broker_election_priority: Annotated[
        int, FAILOVER("of replicas that have the same messages, the one with the greatest is elected", high=1_000_000)
    ] = 0
    failsafe: Annotated[
        str,
        FAILOVER(
            "while the engine is away, a master goes on if it hears every replica that acknowledgements need: `peers`; "
            "never: `off`; also if it needs none: `alone`"
        ),
    ] = "peers"
    election_wait_millis: Annotated[
        int,
        FAILOVER("how long a replica that may have lost messages with its machine lets others be elected, ms"),
    ] = 10_000
    on_master: Annotated[
        str | None, FAILOVER("command that runs when this broker has become master, without a shell; at most 30 s")
    ] = None
    on_slave: Annotated[
        str | None,
        FAILOVER("command that runs when it has become a slave, or stops as a master; without a shell, at most 30 s"),
    ] = None

    def __post_init__(self) -> None:
        TABLE.check(self)
        if self.failover not in ("off", "etcd", "zookeeper"):
            raise TABLE["failover"].wrong(self.failover, "it must be off, etcd or zookeeper")
        if self.failsafe not in ("peers", "off", "alone"):
            raise TABLE["failsafe"].wrong(self.failsafe, "it must be peers, off or alone")
        if self.failover != "off":
            self._check_failover()
        for attribute in ("broker_name", "broker_cluster_name", "msg_trace_topic_name"):
            if not is_legal_topic(getattr(self, attribute)):  # a topic has this name
                allowed = "it must be letters, digits, '%', '|', '_' and '-', at most 127"
                raise TABLE[attribute].wrong(getattr(self, attribute), allowed)
        if self.ha_master_proof not in ("auto", "required", "off"):
            raise TABLE["ha_master_proof"].wrong(self.ha_master_proof, "it must be auto, required or off")
        if self.observe_port is not None:
            observe_address(self.observe_port, "observePort")
        for address in self.name_servers:
            parse_address(address, "namesrvAddr")
        lowest, highest = _REGISTER_PERIOD_MS
        period = min(max(self.register_name_server_period, lowest), highest)
        object.__setattr__(self, "register_name_server_period", period)

    def _check_failover(self) -> None:
        if not self.engine_nodes:
            raise BadSettings(f"failover={self.failover} needs dcsAddr, the addresses of the engine's nodes")
        if self.failover_ttl_millis % 1000:
            raise TABLE["failover_ttl_millis"].wrong(self.failover_ttl_millis, "it must be whole seconds")
        if not self.dcs_prefix.startswith("/"):
            raise TABLE["dcs_prefix"].wrong(self.dcs_prefix, "it must begin with /")

    @classmethod
    def of(cls, settings: Settings) -> BrokerSettings:
        """Returns the broker's part of broker.conf and `--set`. Raises BadSettings."""
        return cls(**TABLE.parse(settings.broker))

    def with_changes(self, **changes: Any) -> BrokerSettings:
        """Returns a copy with these attributes changed. Raises BadSettings."""
        return replace(self, **changes)

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers to register with, besides the embedded one."""
        return [address.strip() for address in (self.namesrv_addr or "").split(";") if address.strip()]

    @property
    def engine_nodes(self) -> list[tuple[str, int]]:
        """The addresses of dcsAddr. Raises BadSettings."""
        texts = [each.strip() for each in (self.dcs_addr or "").split(";") if each.strip()]
        return [parse_address(text, "dcsAddr") for text in texts]

    @property
    def is_writable(self) -> bool:
        return self.broker_permission & 2 != 0

    @property
    def is_readable(self) -> bool:
        return self.broker_permission & 4 != 0


def observe_address(text: str, what: str) -> tuple[str, int] | None:
    """Returns host and port of a setting `port`, `host:port` or `off`; None if it is off. A port alone is one of the
    loopback address. Raises BadSettings, whose text names the setting `what`.
    """
    text = text.strip()
    if text == "off":
        return None
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return "127.0.0.1", int(text)
    if ":" in text:
        return parse_address(text, what)
    raise BadSettings(f"{what} is {text!r}; it must be PORT, HOST:PORT or off")


TABLE: Final = SettingTable(BrokerSettings, kept=(*SERVER_NAMES, *CLIENT_NAMES, *DCS_TLS_NAMES))


class SettingsInForce:
    """The current settings. Concerns read `now` each time, so that a change reaches all of them."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.now = settings
        self.on_change: list[Callable[[BrokerSettings], None]] = []

    def change(self, **changes: Any) -> None:
        """Changes settings while the broker runs. If a value is invalid, raises BadSettings and changes nothing."""
        self.now = self.now.with_changes(**changes)
        for changed in self.on_change:
            changed(self.now)
