"""RocketMQ 4.9's settings in broker.conf and namesrv.conf that Penstock accepts without effect.

Penstock can therefore load any RocketMQ configuration. At its start, it logs one line with the names without effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_STORE: Final = """
    readOnlyCommitLogStorePaths useReentrantLockWhenPutMessage duplicationEnable messageIndexSafe
    enableConsumeQueueExt bitMapLengthConsumeQueueExt enableScheduleAsyncDeliver
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    storePathDLedgerCommitLog dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId isEnableBatchPush
    enableBatchPush maxLmqConsumeQueueNum diskFallRecorded enableScheduleMessageStats debugLockEnable
    putMsgIndexHightWater messageStorePlugIn
"""
_BROKER: Final = """
    rocketmqHome fetchNamesrvAddrByAddressServer forceRegister flushConsumerOffsetHistoryInterval
    transferMsgByHeap maxDelayTime highSpeedMode disableConsumeIfConsumerReadSlowly
    consumerFallbehindThreshold autoDeleteUnusedStats enableDetailStat isolateLogEnable
    enableCalcFilterBitMap filterSupportRetry expectConsumerNumUseFilter maxErrorRateOfBloomFilter
    filterDataCleanTimeSpan filterServerNums
    commercialEnable commercialTimerCount commercialTransCount commercialBigCount commercialBaseCount
"""
_THREADS: Final = """
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
_NETWORK: Final = """
    serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
    serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize
    serverPooledByteBufAllocatorEnable serverSocketBacklog useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark clientWorkerThreads clientCallbackExecutorThreads
    clientOnewaySemaphoreValue clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval
    clientChannelMaxIdleTimeSeconds clientSocketSndBufSize clientSocketRcvBufSize
    clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
"""
_NAME_SERVER: Final = "configStorePath productEnvName clusterTest"

IGNORED: Final[frozenset[str]] = frozenset(" ".join((_STORE, _BROKER, _THREADS, _NETWORK, _NAME_SERVER)).split())


def ignored_note(given: Iterable[str]) -> list[str]:
    """Returns a list with one sentence that names the settings of `given` without effect, or [] if there are none."""
    names = sorted(IGNORED.intersection(given))
    if not names:
        return []
    return [f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect here."]
