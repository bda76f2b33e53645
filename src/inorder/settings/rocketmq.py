"""RocketMQ's own settings: shared, refused, or without a meaning here.

    shared      inorder has the same setting, some in another unit (`config.py` names both)
    refused     the setting promises something that inorder cannot keep, and to ignore it would
                break that promise silently; a value that asks for nothing is accepted
    no meaning  collected for one warning

The list of names tells a setting of RocketMQ from a misspelt one, which is an error. It covers the
broker, store, network, authentication and name-server settings of 5.3 and 5.4. Why: decision 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from inorder.config import BrokerConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings.values import Setting

_BROKER: Final = """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable
    accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond aclEnable
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync asyncLearner asyncSendEnable
    authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums
    bindAddress bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
    broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerClusterName
    brokerConfigPath brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval
    brokerIP1 brokerIP2 brokerId brokerName brokerNotActiveTimeoutMillis brokerPermission
    brokerRole brokerTopicEnable cgColdReadThreshold channelExpiredTimeout
    channelNotActiveInterval checkCRCOnRecover checkSyncStateSetPeriod cleanFileForciblyEnable
    cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue
    clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads clusterName clusterTopicEnable coldCtrStrategyEnable
    coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType
    combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles
    combineCQPreferCQType commercialBaseCount commercialSizePerMsg commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
    commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize
    compactionMappedFileSize compactionScheduleInternal compactionThreadNum
    compatibleWithOldNameSrv compressedRegister configBlackList configManagerVersion configName
    connectTimeoutMillis consumerFallbehindThreshold consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep controllerAddr
    controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable
    debugLockEnable defaultMessageRequestMode defaultPopShareQueueNum defaultQueryMaxNum
    defaultTopicQueueNums delayOffsetUpdateVersionStep deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
    destroyMapedFileIntervalForcibly disableCallbackExecutor disableConsumeIfConsumerReadSlowly
    disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio
    diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads
    dispatchFromSenderThread duplicationEnable enableAcceleratedRecovery enableAsyncReput
    enableAutoInSyncReplicas enableBatchPush enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
    enableCompaction enableConnectionMetrics enableConsumeQueueExt enableControllerMode
    enableCreateSysGroup enableDLegerCommitLog enableDetailStat enableFastChannelEventProcess
    enableLagAndDlqMetrics enableLmq enableLmqStats
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics
    enableMixedMessageType enableMultiDispatch enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
    enablePropertyFilter enableReconnectForGoAway enableRegisterProducer enableRemoteEscape
    enableRemotingMetrics enableRequestMetrics enableRetryTopicV2 enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enableShutdownGracefully enableSingleTopicRegister enableSkipLongAwaitingAck
    enableSlaveActingMaster enableSplitMetadata enableSplitRegistration enableStatsMetrics
    enableTransactionMetrics enabledAppendPropCRC endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
    fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval fileReservedTime
    filterDataCleanTimeSpan filterSupportRetry flushCommitLogLeastPages
    flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval flushDelayOffsetInterval flushDiskType flushIntervalCommitLog
    flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC
    forwardTimeout globalColdReadThreshold haFlowControlEnable haHousekeepingInterval
    haListenPort haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
    haSendHeartbeatInterval haTransferBatchSize heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode inSyncReplicas initAuthenticationUser
    initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials isBrokerContainer
    isInBrokerContainer isScanAvailableNameSrv isolateLogEnable listenPort litePullMessageEnable
    litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums
    loadBalanceThreadPoolQueueCapacity lockInStrictMode logicQueueForceSwapMapInterval
    logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    logicalDiskSpaceCleanForciblyThreshold longPollingEnable mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
    mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests
    maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxErrorRateOfBloomFilter
    maxFilterMessageSize maxHaTransferByteInSecond maxHashSlotNum maxIndexNum
    maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch maxOffsetMapSize maxPopPollingSize
    maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxSlaveResendLength
    maxStatsIdleTimeInMinutes maxTopicLength maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory memTableFlushIntervalMs messageDelayLevel
    messageIndexEnable messageIndexSafe messageStorePlugIn metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
    metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
    migrateAuthFromV1Enabled minInSyncReplicas msgTraceTopicName namesrvAddr
    notifyConsumerIdsChangedEnable offsetCheckInSlave osPageCacheBusyTimeOutMills
    popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
    popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
    popConsumerKVServiceLog popFromRetryProbability popInflightMessageThreshold
    popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
    popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
    popReviveMaxReturnSizePerRead preferredLeaderId printChannelGroups printChannelGroupsMinNum
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums
    putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths
    readUnCommitted realTimeNotifyConsumerChange realTimePersistRocksDBConfig
    recallMessageEnable recheckReputOffsetFromCq recoverConcurrently recoverThreadPoolNums
    redeleteHangedFileInterval regionId registerBrokerTimeoutMills registerNameServerPeriod
    rejectPullConsumerEnable rejectTransactionMessage replicasPerDiskPartition
    replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
    reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime rocketmqHome
    rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
    rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sendHeartbeatTimeoutMillis sendMessageThreadPoolNums
    sendThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
    shortPollingTimeMills shutdownWaitTimeSeconds skipPreOnline skipWhenCKRePutReachMaxTimes
    slaveReadEnable slaveTimeout socksProxyConfig spinLockCollisionRetreatOptimalDegree
    splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp
    statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond
    statefulAuthorizationCacheMaxNum storePathBrokerIdentity storePathCommitLog
    storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeReplyMessageEnable
    storeType subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
    syncControllerMetadataPeriod syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen timerColdDataCheckIntervalMs
    timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor
    timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
    timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs
    timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
    timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable
    tls.client.authServer tls.client.certPath tls.client.keyPassword tls.client.keyPath
    tls.client.trustCertPath tls.config.file tls.enable tls.server.authClient
    tls.server.certPath tls.server.keyPassword tls.server.keyPath tls.server.mode
    tls.server.need.client.auth tls.server.trustCertPath tls.test.mode.enable topicQueueLockNum
    totalReplicas traceOn traceTopicEnable transactionCheckInterval transactionCheckMax
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
    transactionTimeOut transferMsgByHeap transientStorePoolEnable transientStorePoolSize
    travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock useEpollNativeSelector
    usePIDColdCtrStrategy useReentrantLockWhenPutMessage useServerSideResetOffset
    useStaticSubscription useTLS userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage
    wakeFlushWhenPutMessage warmMapedFileEnable writeBufferHighWaterMark writeBufferLowWaterMark
    writeWithoutMmap
"""

_NAME_SERVER: Final = """
    bindAddress channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientRequestThreadPoolNums
    clientRequestThreadPoolQueueCapacity clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads clusterTest configBlackList configStorePath connectTimeoutMillis
    defaultThreadPoolNums defaultThreadPoolQueueCapacity deleteTopicWithBrokerRegistration
    disableCallbackExecutor disableNettyWorkerGroup enableAllTopicList enableControllerInNamesrv
    enableReconnectForGoAway enableShutdownGracefully enableTopicList isScanAvailableNameSrv
    kvConfigPath listenPort maxReconnectIntervalTimeSeconds needWaitForService
    notifyMinBrokerIdChanged orderMessageEnable productEnvName returnOrderTopicConfigToBroker
    rocketmqHome scanNotActiveBrokerInterval serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
    shutdownWaitTimeSeconds socksProxyConfig supportActingMaster tls.client.authServer
    tls.client.certPath tls.client.keyPassword tls.client.keyPath tls.client.trustCertPath
    tls.config.file tls.enable tls.server.authClient tls.server.certPath tls.server.keyPassword
    tls.server.keyPath tls.server.mode tls.server.need.client.auth tls.server.trustCertPath
    tls.test.mode.enable unRegisterBrokerQueueCapacity useEpollNativeSelector useTLS
    waitSecondsForService writeBufferHighWaterMark writeBufferLowWaterMark
"""

BROKER_NAMES: Final = frozenset(_BROKER.split())
NAME_SERVER_NAMES: Final = frozenset(_NAME_SERVER.split()) | {
    # RocketMQ's name server checks nothing; inorder's takes the same settings as a broker.
    "authenticationEnabled", "authenticationWhitelist", "authorizationEnabled",
    "authorizationWhitelist", "initAuthenticationUser", "innerClientAuthenticationCredentials",
}  # fmt: skip


Raw = bool | int | float | str


_NAMES: Final[Mapping[type, frozenset[str]]] = {
    BrokerConfig: BROKER_NAMES,
    NameServerConfig: NAME_SERVER_NAMES,
}


def foreign_names(cls: type) -> frozenset[str]:
    """Return every name that RocketMQ knows in the settings file of this kind of server."""
    return _NAMES.get(cls, frozenset())


def _flush_mode(value: str) -> Raw:
    modes = {"SYNC_FLUSH": True, "ASYNC_FLUSH": False}
    if value not in modes:
        raise ConfigError(f"flushDiskType is {value!r}; it must be SYNC_FLUSH or ASYNC_FLUSH")
    return modes[value]


def _percent(value: str) -> Raw:
    return float(value) / 100


def _seconds(value: str) -> Raw:
    return int(value) * 1000


_TRANSLATE: Final[Mapping[str, Callable[[str], Raw]]] = {
    "flushDiskType": _flush_mode,
    "diskMaxUsedSpaceRatio": _percent,
    "diskSpaceCleanForciblyRatio": _percent,
    "diskSpaceWarningLevelRatio": _percent,
    "serverChannelMaxIdleTimeSeconds": _seconds,
}


def translate(setting: Setting, value: Raw, where: str) -> Raw:
    """Convert a value given under RocketMQ's name to inorder's unit."""
    assert setting.rocketmq is not None
    convert = _TRANSLATE.get(setting.rocketmq)
    if convert is None:
        return value
    try:
        return convert(str(value).strip())
    except ValueError:
        raise ConfigError(
            f"{setting.rocketmq} is {value!r} ({where}); it must be a number"
        ) from None


@dataclass(frozen=True, slots=True)
class _Promise:
    harmless: frozenset[str]
    reason: str


_OFF: Final = frozenset({"false", ""})
_NO_REPLICAS: Final = "inorder has no replicas yet: run it as a master"
_NO_OLD_ACL: Final = "ACL 1.0 is not served: set access.level, and create users and rules instead"
_NO_WHITELIST: Final = (
    "a white list would let requests pass without a check; give users the rights they need, or use "
    "access.level=log until they have them"
)
_ONE_ROOT: Final = "all files lie below storePathRootDir: set that instead"

_PROMISES: Final[Mapping[str, _Promise]] = {
    "brokerRole": _Promise(frozenset({"ASYNC_MASTER", "SYNC_MASTER"}), _NO_REPLICAS),
    "enableDLegerCommitLog": _Promise(_OFF, _NO_REPLICAS),
    "enableControllerMode": _Promise(_OFF, _NO_REPLICAS),
    "aclEnable": _Promise(_OFF, _NO_OLD_ACL),
    "authenticationWhitelist": _Promise(frozenset({""}), _NO_WHITELIST),
    "authorizationWhitelist": _Promise(frozenset({""}), _NO_WHITELIST),
    "storeType": _Promise(frozenset({"default", ""}), "inorder writes RocketMQ's file store only"),
    "enableMultiDispatch": _Promise(_OFF, "light message queues are not served"),
}

_BELOW_ROOT: Final[Mapping[str, str]] = {
    "storePathCommitLog": "commitlog",
}


class Foreign:
    """RocketMQ's settings that inorder lacks, judged when all layers are read."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, str]] = {}

    def add(self, name: str, value: Raw, where: str) -> None:
        """Note a setting; a later layer replaces an earlier one."""
        text = str(value).lower() if isinstance(value, bool) else str(value).strip()
        self._seen[name] = (text, where)

    def ignored(self, root: str) -> tuple[str, ...]:
        """Return the names without a meaning here; raise for a promise that cannot be kept."""
        without_meaning = []
        for name, (value, where) in self._seen.items():
            promise = _PROMISES.get(name)
            below = _BELOW_ROOT.get(name)
            if promise is not None and value not in promise.harmless:
                raise ConfigError(f"{name}={value} ({where}) cannot be kept; {promise.reason}")
            if below is not None and value.rstrip("/") != f"{root.rstrip('/')}/{below}":
                raise ConfigError(f"{name}={value} ({where}) cannot be kept; {_ONE_ROOT}")
            if below is None and not (name == "brokerRole" and value == "ASYNC_MASTER"):
                without_meaning.append(name)
        return tuple(sorted(without_meaning))
