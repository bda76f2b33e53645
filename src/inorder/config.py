"""Settings: frozen values, each with its unit in its name and RocketMQ's key beside it.

Layers: defaults < file < environment < flags; see `inorder.settings`. Where settings come from, and
what the defaults are: decision 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1024 * 1024


def setting(default: Any, doc: str, *, rocketmq: str | None = None, secret: bool = False) -> Any:
    """Declare a setting: default, one line of documentation, RocketMQ's name for it.

    The value of a secret one is never shown.
    """
    metadata = {"doc": doc, "rocketmq": rocketmq, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


# Tables from here on: one setting a line.
# fmt: off


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The files of a broker."""

    segment_bytes: int = setting(1024 * MIB, "size of a commit-log file", rocketmq="mappedFileSizeCommitLog")
    queue_file_bytes: int = setting(6_000_000, "size of a consume-queue file", rocketmq="mappedFileSizeConsumeQueue")
    index_slots: int = setting(5_000_000, "hash slots of an index file", rocketmq="maxHashSlotNum")
    index_entries: int = setting(20_000_000, "entries of an index file", rocketmq="maxIndexNum")
    index_enable: bool = setting(True, "build the key index", rocketmq="messageIndexEnable")
    sync_flush: bool = setting(False, "acknowledge only what is on disk (SYNC_FLUSH)", rocketmq="flushDiskType")
    flush_interval_ms: int = setting(500, "how often async flush writes to disk", rocketmq="flushIntervalCommitLog")
    sync_flush_timeout_ms: int = setting(5000, "after this a sync flush is answered 10", rocketmq="syncFlushTimeout")
    queue_write_interval_ms: int = setting(100, "how long consume-queue entries may wait in memory")
    message_bytes_max: int = setting(4 * MIB, "largest message body", rocketmq="maxMessageSize")
    retention_hours: int = setting(72, "age at which a commit-log file may go", rocketmq="fileReservedTime")
    delete_when: str = setting("04", "hours of the day for deleting expired files", rocketmq="deleteWhen")
    disk_used_ratio_max: float = setting(0.75, "above: expired files go at any hour", rocketmq="diskMaxUsedSpaceRatio")
    disk_clean_forcibly_ratio: float = setting(0.85, "above: oldest files go, expired or not", rocketmq="diskSpaceCleanForciblyRatio")
    disk_full_ratio: float = setting(0.90, "above: writes are refused", rocketmq="diskSpaceWarningLevelRatio")
    clean_interval_ms: int = setting(10_000, "how often retention runs", rocketmq="cleanResourceInterval")
    open_files_max: int = setting(16_384, "consume-queue files kept open; never more than a quarter of the descriptors")
    cut_corrupt_log: bool = setting(False, "start on a log damaged in its middle and lose what follows the damage")
    pending_bytes_max: int = setting(64 * MIB, "bytes that may wait for a write or a sync; above: SYSTEM_BUSY")
    requests_waiting_max: int = setting(1000, "requests of one producer without a reply yet; further ones are refused")
    delay_levels: str = setting("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "the delay of each level, level 1 first", rocketmq="messageDelayLevel")
    delay_save_interval_ms: int = setting(10_000, "how often the progress of delayed delivery is saved", rocketmq="flushDelayOffsetInterval")
    timer_enable: bool = setting(True, "take messages for a time of day (deliver_at=); without, they are refused", rocketmq="timerWheelEnable")
    timer_max_delay_sec: int = setting(3 * 24 * 3600, "seconds from now that a message may wait for its time", rocketmq="timerMaxDelaySec")
    timers_max: int = setting(10_000_000, "messages that may wait for their time; further ones are refused")


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Connections."""

    frame_bytes_max: int = setting(16 * MIB, "largest frame, length field included")
    connections_max: int = setting(20_000, "connections at a time; further ones are closed, as are those that would take descriptors (ulimit -n) kept for files")
    connections_per_address_max: int = setting(1_000_000, "connections from one address at a time; as many as you like unless set")
    idle_timeout_ms: int = setting(120_000, "a silent connection is closed", rocketmq="serverChannelMaxIdleTimeSeconds")
    frame_timeout_ms: int = setting(30_000, "a frame that does not complete in this time closes the connection")
    write_buffer_bytes_max: int = setting(8 * MIB, "unsent bytes of a connection at which reading from it pauses")
    unread_bytes_max: int = setting(256 * MIB, "unsent bytes of all connections; above, those with most are closed")
    outstanding_max: int = setting(4096, "requests of one connection that may wait for an answer")
    tls_mode: str = setting("permissive", "disabled, permissive or enforcing", rocketmq="tls.server.mode")
    tls_certificate: str = setting("", "PEM file of the certificate chain", rocketmq="tls.server.certPath")
    tls_key: str = setting("", "PEM file of the private key", rocketmq="tls.server.keyPath")


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Who may do what; off unless it is set."""

    level: str = setting("", "off; log: let everything pass, and count what enforce would refuse; enforce. Empty: enforce if authenticationEnabled and authorizationEnabled are true, else off")
    authentication: bool = setting(False, "RocketMQ's switch; it needs authorizationEnabled beside it", rocketmq="authenticationEnabled")
    authorization: bool = setting(False, "RocketMQ's switch; it needs authenticationEnabled beside it", rocketmq="authorizationEnabled")
    init_user: str = setting("", "the first super user, created at the start if it is not there: {\"username\":…,\"password\":…}", rocketmq="initAuthenticationUser", secret=True)
    inner_credentials: str = setting("", "what servers of the cluster sign their requests to each other with, the same for all: {\"accessKey\":…,\"secretKey\":…}", rocketmq="innerClientAuthenticationCredentials", secret=True)
    key_file: str = setting("", "file with the key that encrypts the secrets in access.json: 64 hex digits, outside of the data directory; empty: they are not encrypted")

    @property
    def effective_level(self) -> str:
        """Return off, log or enforce."""
        both = self.authentication and self.authorization
        return self.level or ("enforce" if both else "off")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker."""

    name: str = setting("broker-a", "broker name", rocketmq="brokerName")
    cluster: str = setting("DefaultCluster", "cluster name", rocketmq="brokerClusterName")
    broker_id: int = setting(0, "0 is the master; there are no replicas", rocketmq="brokerId")
    host: str = setting("127.0.0.1", "address to listen on", rocketmq="bindAddress")
    port: int = setting(10911, "port to listen on; 0 = any", rocketmq="listenPort")
    advertised_host: str = setting("", "address given to clients; default: host", rocketmq="brokerIP1")
    namesrv: str = setting("", "name servers, host:port;host:port", rocketmq="namesrvAddr")
    data: str = setting("./inorder-data", "data directory", rocketmq="storePathRootDir")
    perm: int = setting(6, "4 read, 2 write", rocketmq="brokerPermission")
    region: str = setting("DefaultRegion", "region id", rocketmq="regionId")
    trace_on: bool = setting(True, "TRACE_ON of answers", rocketmq="traceOn")
    auto_create_topics: bool = setting(True, "create unknown topics on send", rocketmq="autoCreateTopicEnable")
    auto_create_groups: bool = setting(True, "create unknown groups on use", rocketmq="autoCreateSubscriptionGroup")
    refuse_different_subscriptions: bool = setting(False, "refuse a consumer that subscribes other topics or tags than the members of its group")
    default_topic_queues: int = setting(8, "queues of the template TBW102", rocketmq="defaultTopicQueueNums")
    topics_max: int = setting(100_000, "topics; further ones are refused")
    groups_max: int = setting(100_000, "groups; further ones are refused")
    producers_max: int = setting(100_000, "idempotent producers; above: the broker forgets the anonymous one that is idle longest")
    parked_keys_max: int = setting(10_000, "keys that a group may have parked here; then its keys block")
    parked_bytes_max: int = setting(256 * MIB, "bytes of messages that a group may have parked here; then its keys block")
    parked_age_max_ms: int = setting(7 * 24 * 3_600_000, "a group with a key parked for longer parks no more; its keys block")
    transaction_timeout_ms: int = setting(6000, "age at which the producers of a transaction without an outcome are asked", rocketmq="transactionTimeOut")
    transaction_check_interval_ms: int = setting(30_000, "how often producers are asked", rocketmq="transactionCheckInterval")
    transaction_checks_max: int = setting(15, "questions about a transaction; then it goes to TRANS_CHECK_MAX_TIME_TOPIC", rocketmq="transactionCheckMax")
    transaction_note_interval_ms: int = setting(3000, "how long the record of an ended transaction may wait; the outcome itself never waits", rocketmq="transactionOpBatchInterval")
    transaction_note_bytes_max: int = setting(4096, "bytes of such a record", rocketmq="transactionOpMsgMaxSize")
    reject_transactions: bool = setting(False, "refuse transactional messages", rocketmq="rejectTransactionMessage")
    transactions_max: int = setting(100_000, "transactions without an outcome; further ones are refused")
    long_polling: bool = setting(True, "hold pulls that find nothing", rocketmq="longPollingEnable")
    short_polling_ms: int = setting(1000, "hold when long polling is off", rocketmq="shortPollingTimeMills")
    waits_max: int = setting(200_000, "held pulls; further ones are answered at once")
    transfer_bytes_max: int = setting(256 * 1024, "bytes of a pull answer", rocketmq="maxTransferBytesOnMessageInMemory")
    transfer_count_max: int = setting(32, "messages of a pull answer", rocketmq="maxTransferCountOnMessageInMemory")
    filter_scan_max: int = setting(800, "index entries that one pull may examine")
    property_filter: bool = setting(True, "filter messages by SQL92 expressions over their properties", rocketmq="enablePropertyFilter")
    filter_keep_ms: int = setting(24 * 3_600_000, "how long the SQL92 filters of a group are kept that has no members", rocketmq="filterDataCleanTimeSpan")
    pop_polling_max: int = setting(1024, "pops that wait for one queue of a group; further ones are answered 209", rocketmq="popPollingSize")
    pop_polling_keys_max: int = setting(100_000, "queues of groups that pops may wait for; further ones are answered 209", rocketmq="popPollingMapSize")
    pop_polling_total_max: int = setting(100_000, "pops that wait; further ones are answered 209", rocketmq="maxPopPollingSize")
    pop_inflight_max: int = setting(10_000, "messages of a queue that a group may have popped and not acknowledged; then a pop finds nothing", rocketmq="popInflightMessageThreshold")
    pop_check_points_max: int = setting(200_000, "pops of all groups with messages that are not acknowledged; then a pop finds nothing", rocketmq="popCkMaxBufferSize")
    pop_from_retry_probability: int = setting(20, "how many pops of 100 read the retry topic first; the others read it last", rocketmq="popFromRetryProbability")
    pop_order_invisible_max_ms: int = setting(600_000, "longest invisible time of a pop in order; after a power cut no queue is given away for as long as the longest that was used")
    default_request_mode: str = setting("PULL", "PULL or POP: how a group works on a topic if it asks the broker and nothing is set", rocketmq="defaultMessageRequestMode")
    default_pop_share: int = setting(-1, "further members that may pop a member's queues, if nothing is set; 0 or less: all", rocketmq="defaultPopShareQueueNum")
    server_load_balancer: bool = setting(True, "share queues out among members that ask the broker", rocketmq="serverLoadBalancerEnable")
    lock_expiry_ms: int = setting(60_000, "how long a RocketMQ client's queue lock lasts")
    register_interval_ms: int = setting(30_000, "how often to register with the name servers", rocketmq="registerNameServerPeriod")
    register_timeout_ms: int = setting(24_000, "time for a registration", rocketmq="registerBrokerTimeoutMills")
    offset_save_interval_ms: int = setting(5000, "how often consumer offsets are saved", rocketmq="flushConsumerOffsetInterval")
    channel_expiry_ms: int = setting(120_000, "a client without heartbeat is dropped", rocketmq="channelExpiredTimeout")
    shutdown_timeout_ms: int = setting(10_000, "time to drain when stopping")
    recall_enable: bool = setting(True, "let producers recall messages that wait for their time (RocketMQ's default is false)", rocketmq="recallMessageEnable")
    remote_config: bool = setting(False, "allow UPDATE_BROKER_CONFIG for the settings that may change at run time")
    trace_topic: bool = setting(False, "create the topic of message traces at the start", rocketmq="traceTopicEnable")
    trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", "the topic of message traces", rocketmq="msgTraceTopicName")
    store_replies: bool = setting(True, "keep the replies to requests in the cluster's reply topic", rocketmq="storeReplyMessageEnable")
    store: StoreConfig = field(default_factory=StoreConfig)
    net: NetConfig = field(default_factory=NetConfig)
    access: AccessConfig = field(default_factory=AccessConfig)

    @property
    def data_path(self) -> Path:
        """Return the data directory."""
        return Path(self.data)


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """One name server."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(9876, "port to listen on; 0 = any", rocketmq="listenPort")
    data: str = setting("./inorder-data/namesrv", "directory of kvConfig.json")
    broker_expiry_ms: int = setting(120_000, "a silent broker is dropped")
    scan_interval_ms: int = setting(5000, "how often silent brokers are looked for", rocketmq="scanNotActiveBrokerInterval")
    order_message_enable: bool = setting(False, "put orderTopicConf into routes", rocketmq="orderMessageEnable")
    return_order_config: bool = setting(True, "tell brokers the order topics", rocketmq="returnOrderTopicConfigToBroker")
    net: NetConfig = field(default_factory=NetConfig)
    access: AccessConfig = field(default_factory=AccessConfig)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Consumers that run handlers; the defaults are RocketMQ's where it has one."""

    pull_suspend_ms: int = setting(15_000, "how long a broker may hold a pull that finds nothing")
    pull_timeout_ms: int = setting(30_000, "time for a pull and its answer", rocketmq="consumerTimeoutMillisWhenSuspend")
    pull_messages_max: int = setting(500, "messages of one pull, of 256 KiB at most; an Apache RocketMQ broker gives 32 at most")
    pull_interval_ms: int = setting(0, "pause after a pull that found messages", rocketmq="pullInterval")
    pull_error_delay_ms: int = setting(1000, "pause after a pull that failed", rocketmq="pullTimeDelayMillsWhenException")
    cached_messages_max: int = setting(1000, "messages of one queue not done yet; above: no further pull")
    cached_bytes_max: int = setting(100 * MIB, "bytes of one queue not done yet; above: no further pull")
    cached_span_max: int = setting(2000, "offsets from the oldest to the newest message not done yet, without order", rocketmq="consumeConcurrentlyMaxSpan")
    topic_messages_max: int = setting(0, "messages of one topic not done yet, divided among its queues here; 0: only the limit of a queue counts", rocketmq="pullThresholdForTopic")
    topic_bytes_max: int = setting(0, "bytes of one topic not done yet, divided among its queues here; 0: only the limit of a queue counts")
    concurrency: int = setting(20, "handlers of one topic at a time", rocketmq="consumeThreadMax")
    suspend_ms: int = setting(1000, "how long an ordered queue waits after a failed attempt", rocketmq="suspendCurrentQueueTimeMillis")
    run_max_ms: int = setting(60_000, "how long an ordered queue is handled in one go; then it pauses for 10 ms and others get their turn", rocketmq="rocketmq.client.maxTimeConsumeContinuously")
    handler_timeout_ms: int = setting(900_000, "a message without order that takes longer is sent back")
    commit_interval_ms: int = setting(5000, "how often offsets are committed; under leases at least every second", rocketmq="persistConsumerOffsetInterval")
    lease_ms: int = setting(5000, "how long an ordered queue stays a consumer's of which nothing is heard; 500 to 120000")
    grace_ms: int = setting(1000, "the same once its connection is closed; above the longest handler if overlap matters more than speed")
    close_timeout_ms: int = setting(30_000, "how long `close` waits for handlers", rocketmq="awaitTerminationMillisWhenShutdown")
    offsets_dir: str = setting("~/.rocketmq_offsets", "where broadcasting consumers keep their offsets", rocketmq="rocketmq.client.localOffsetStoreDir")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of one client session, which its producers and consumers share."""

    request_timeout_ms: int = setting(3000, "time for one request and its answer", rocketmq="mqClientApiTimeout")
    send_timeout_ms: int = setting(10_000, "time for a send with all its retries")
    retry_first_ms: int = setting(20, "pause before the first retry; it doubles with each")
    retry_max_ms: int = setting(1000, "longest pause between retries")
    route_refresh_ms: int = setting(30_000, "how often routes are asked for again", rocketmq="pollNameServerInterval")
    heartbeat_interval_ms: int = setting(30_000, "how often the client sends heartbeats to brokers", rocketmq="heartbeatBrokerInterval")
    default_topic_queues: int = setting(4, "queues wanted when a send makes a topic", rocketmq="defaultTopicQueueNums")
    message_bytes_max: int = setting(4 * MIB, "largest message body", rocketmq="maxMessageSize")
    pull_suspend_ms: int = setting(20_000, "how long a broker may hold a pull that finds nothing", rocketmq="brokerSuspendMaxTimeMillis")
    pull_messages_max: int = setting(32, "messages of one pull", rocketmq="pullBatchSize")
    poll_messages_max: int = setting(500, "messages of one poll")
    prefetch_messages_max: int = setting(1000, "messages of one queue read ahead; above: no further pull", rocketmq="pullThresholdForQueue")
    prefetch_bytes_max: int = setting(4 * MIB, "bytes of one queue read ahead; above: no further pull")
    compression: str = setting("zlib", "compression of large bodies; lz4 and zstd need their extra")
    compress_above_bytes: int = setting(4096, "bodies of this size and larger are compressed", rocketmq="compressMsgBodyOverHowmuch")
    batch_bytes_max: int = setting(MIB, "bytes of one request of a batch; larger batches are split")
    sends_waiting_max: int = setting(10_000, "messages of one producer without an outcome yet; further calls wait, or are refused")
    sends_waiting_bytes_max: int = setting(64 * MIB, "their bodies in bytes; the same")
    sends_in_flight_max: int = setting(256, "sends of one producer to one queue that may be unanswered at a time; 1 to 1024")
    requests_waiting_max: int = setting(1000, "requests of one producer without a reply yet; further ones are refused")
    delay_levels: str = setting("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "the delay levels of the brokers, which delay= and delay_level= are checked by", rocketmq="messageDelayLevel")
    linger_ms: int = setting(0, "how long messages of send_nowait wait for others to share a request with; 0: only while a request to their queue is on its way")
    avoid_failed_ms: int = setting(5000, "how long sends without a key pass over a broker that failed")
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    net: NetConfig = field(default_factory=NetConfig)
