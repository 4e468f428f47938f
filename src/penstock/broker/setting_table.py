"""Every setting of the broker: its name, type, default, effect and meaning, once.

Names and defaults are RocketMQ 4.9.8's. They stand in the same broker.conf as the store's; the store's `Settings` reads
the file and keeps the texts, `BrokerSettings` gives them their meaning. The reference page is made from this table:
`python -m penstock.broker.setting_page > docs/reference/broker-settings.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final, get_type_hints

from penstock.store.setting_spec import Origin, Section, Spec, no_effect, spec_of

_LONG_MAX: Final = 2**63 - 1

IDENTITY = Section("Who it is")
REGISTER = Section("Name servers")
TOPICS = Section("Topics and groups")
SEND = Section("Sending")
PULL = Section("Pulling and offsets")
FILTER = Section("Filters")
TRANSACTION = Section("Transactions")
TRACE = Section("Trace and access")
NETWORK = Section("Network")
OURS = Section("Penstock's own", origin=Origin.PENSTOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettingTable:
    """The values, unchecked; `BrokerSettings` is the one to use."""

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
        bool, TOPICS("consumers hear at once when another one of their group comes or goes")
    ] = True

    start_accept_send_request_time_stamp: Annotated[
        int, SEND("sends are refused before this time, epoch ms", high=_LONG_MAX)
    ] = 0
    store_reply_message_enable: Annotated[bool, SEND("an answer to a request is stored as well as pushed")] = True
    max_delay_time: Annotated[
        int, SEND("longest delay by time, days", no_effect("delays are by level, as in RocketMQ 4.9"))
    ] = 40

    long_polling_enable: Annotated[bool, PULL("a pull that finds nothing waits as long as its client says")] = True
    short_polling_time_mills: Annotated[int, PULL("how long it waits otherwise, ms")] = 1000
    flush_consumer_offset_interval: Annotated[int, PULL("period of writing consumerOffset.json, ms", low=1)] = 5000
    slave_read_enable: Annotated[
        bool, PULL("a master sends consumers that are far behind to a slave, and a slave keeps them")
    ] = False

    enable_property_filter: Annotated[bool, FILTER("consumers may filter by SQL92")] = False
    filter_support_retry: Annotated[
        bool,
        FILTER(
            "their filters count for messages that are retried, too",
            no_effect("a consumer gets back whatever it sent back itself"),
        ),
    ] = False

    reject_transaction_message: Annotated[bool, TRANSACTION("refuse transactional messages")] = False
    transaction_time_out: Annotated[int, TRANSACTION("age at which a producer is first asked, ms")] = 6000
    transaction_check_max: Annotated[int, TRANSACTION("how often a producer is asked at most")] = 15
    transaction_check_interval: Annotated[int, TRANSACTION("period of asking, ms", low=1)] = 60_000

    trace_on: Annotated[bool, TRACE("`TRACE_ON` in every answer to a send: clients may trace")] = True
    trace_topic_enable: Annotated[bool, TRACE("make the topic for traces")] = False
    msg_trace_topic_name: Annotated[str, TRACE("its name")] = "RMQ_SYS_TRACE_TOPIC"
    acl_enable: Annotated[bool, TRACE("only accounts of the access file, `aclFile`, may do what it grants them")] = (
        False
    )

    server_channel_max_idle_time_seconds: Annotated[
        int, NETWORK("a connection that is silent for so long is closed", low=1)
    ] = 120

    register_broker_from: Annotated[
        str, OURS("where other brokers may register from: `loopback`, `any`, or networks joined by `,`")
    ] = "loopback"
    acl_file: Annotated[
        Path | None, OURS("the accounts, a file of the shape of RocketMQ's plain_acl.yml; read again when it changes")
    ] = None
    ha_allow_from: Annotated[
        str, OURS("where slaves may follow from: `loopback`, `any`, or networks joined by `,`")
    ] = "loopback"
    ha_account_file: Annotated[
        Path | None, OURS("a slave's account at its master, where that has `aclEnable`: lines accessKey and secretKey")
    ] = None
    master_addr: Annotated[
        str | None, OURS("where a slave's master answers clients, `host:port`; unset: name servers tell it")
    ] = None
    max_topics: Annotated[int, OURS("topics there may be; no request creates more", low=1)] = 100_000
    max_groups: Annotated[int, OURS("consumer groups there may be; no request creates more", low=1)] = 100_000
    max_held_pulls: Annotated[int, OURS("pulls of one connection that wait for messages", low=1)] = 20_000
    max_unflushed_sends: Annotated[
        int, OURS("sends of one connection that wait for the disk under SYNC_FLUSH; more answer SYSTEM_BUSY", low=1)
    ] = 10_000
    stop_limit_millis: Annotated[int, OURS("longest time from SIGTERM to a clean end, ms", low=1)] = 15_000


_IDLE: Final = {
    "one event loop serves all requests": """
        sendMessageThreadPoolNums pullMessageThreadPoolNums processReplyMessageThreadPoolNums
        queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
        consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums
        putMessageFutureThreadPoolNums sendThreadPoolQueueCapacity putThreadPoolQueueCapacity
        pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
        clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
        heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity brokerFastFailureEnable
        waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInTransactionQueue serverWorkerThreads serverCallbackExecutorThreads
        serverSelectorThreads clientWorkerThreads clientCallbackExecutorThreads useEpollNativeSelector
        highSpeedMode
    """,
    "connections have limits of their own": """
        serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize
        serverPooledByteBufAllocatorEnable serverSocketBacklog writeBufferHighWaterMark
        writeBufferLowWaterMark clientOnewaySemaphoreValue clientAsyncSemaphoreValue connectTimeoutMillis
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
        clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
        transferMsgByHeap
    """,
    "nothing is billed here": """
        commercialEnable commercialTimerCount commercialTransCount commercialBigCount commercialBaseCount
    """,
    "a filter reads the message itself, without a bit map": """
        enableCalcFilterBitMap expectConsumerNumUseFilter maxErrorRateOfBloomFilter filterDataCleanTimeSpan
    """,
    "a group is never switched off by itself": "disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold",
    "TLS is switched on by tls.server.certPath": "useTLS",
    "there are no filter servers": "filterServerNums",
    "nothing is read from a home folder": "rocketmqHome",
    "name servers are named by namesrvAddr or --register": "fetchNamesrvAddrByAddressServer",
    "a broker always registers in full": "forceRegister",
    "no history of offsets is written": "flushConsumerOffsetHistoryInterval",
    "figures of a topic that is deleted go with it": "autoDeleteUnusedStats",
    "figures are always kept by topic and group": "enableDetailStat",
    "the store takes no plug-ins": "messageStorePlugIn",
    "there is one log": "isolateLogEnable",
}

WITHOUT_EFFECT: Final = {name: why for why, names in _IDLE.items() for name in names.split()}
"""RocketMQ's names that are accepted and do nothing here, with the reason."""


def _specs() -> dict[str, Spec]:
    hints = get_type_hints(BrokerSettingTable, include_extras=True)
    return {each.name: spec_of(each.name, hints[each.name], each.default) for each in fields(BrokerSettingTable)}


SPECS: Final[dict[str, Spec]] = _specs()
"""By attribute, in the order of the table."""

BY_NAME: Final[dict[str, Spec]] = {spec.name: spec for spec in SPECS.values()}
"""By RocketMQ's name."""
