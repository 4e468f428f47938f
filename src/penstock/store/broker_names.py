"""The names of broker.conf that belong to the broker and the network layer, not to the store.

They are known, so that a broker.conf of RocketMQ 4.9 is read whole; `Settings.broker` keeps their text for
the broker. `brokerIP1` and `listenPort` are not here because the store uses them: they are in the setting
table. A few are Penstock's own, which a Java broker is not to be told.
"""

from __future__ import annotations

_IDENTITY = """
    brokerName brokerClusterName brokerId brokerIP2 brokerPermission regionId rocketmqHome namesrvAddr
    fetchNamesrvAddrByAddressServer registerBrokerTimeoutMills registerNameServerPeriod compressedRegister
    forceRegister
"""
_TOPICS_AND_GROUPS = """
    defaultTopicQueueNums autoCreateTopicEnable clusterTopicEnable brokerTopicEnable
    autoCreateSubscriptionGroup notifyConsumerIdsChangedEnable flushConsumerOffsetInterval
    flushConsumerOffsetHistoryInterval
"""
_SENDING_AND_PULLING = """
    longPollingEnable shortPollingTimeMills transferMsgByHeap maxDelayTime slaveReadEnable highSpeedMode
    disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold startAcceptSendRequestTimeStamp
    storeReplyMessageEnable autoDeleteUnusedStats enableDetailStat messageStorePlugIn isolateLogEnable
"""
_FILTERS_TRACE_AND_ACCESS = """
    enablePropertyFilter enableCalcFilterBitMap filterSupportRetry expectConsumerNumUseFilter
    maxErrorRateOfBloomFilter filterDataCleanTimeSpan filterServerNums traceOn traceTopicEnable
    msgTraceTopicName aclEnable
"""
_TRANSACTIONS = """
    rejectTransactionMessage transactionTimeOut transactionCheckMax transactionCheckInterval
"""
_THREADS_AND_QUEUES = """
    sendMessageThreadPoolNums pullMessageThreadPoolNums processReplyMessageThreadPoolNums
    queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
    consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums
    putMessageFutureThreadPoolNums sendThreadPoolQueueCapacity putThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
    clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
    heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity brokerFastFailureEnable
    waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInTransactionQueue
"""
_NETWORK = """
    serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
    serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds serverSocketSndBufSize serverSocketRcvBufSize
    serverPooledByteBufAllocatorEnable serverSocketBacklog useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark
    clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
    connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
    clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
"""
_COMMERCIAL = """
    commercialEnable commercialTimerCount commercialTransCount commercialBigCount commercialBaseCount
"""
_TLS = """
    tls.server.mode tls.server.certPath tls.server.keyPath tls.server.keyPassword tls.server.trustCertPath
    tls.server.need.client.auth
    tls.enable tls.client.certPath tls.client.keyPath tls.client.keyPassword tls.client.authServer
    tls.client.trustCertPath
"""
"""Java takes these as system properties."""

_OURS = """
    aclFile registerBrokerFrom maxTopics maxGroups maxHeldPulls maxUnflushedSends stopLimitMillis haAllowFrom
    haAccountFile masterAddr
"""

PENSTOCK_BROKER_NAMES: frozenset[str] = frozenset(_OURS.split())

BROKER_NAMES: frozenset[str] = PENSTOCK_BROKER_NAMES | frozenset(
    " ".join(
        (
            _IDENTITY,
            _TOPICS_AND_GROUPS,
            _SENDING_AND_PULLING,
            _FILTERS_TRACE_AND_ACCESS,
            _TRANSACTIONS,
            _THREADS_AND_QUEUES,
            _NETWORK,
            _COMMERCIAL,
            _TLS,
        )
    ).split()
)
