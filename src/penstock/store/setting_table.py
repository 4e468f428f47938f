"""Every setting of the store: its name, type, default, dev value, effect and meaning, once.

The names and defaults are RocketMQ 4.9.8's; attributes spell them in snake_case, with RocketMQ's typing
errors put right (`warmMapedFileEnable` is `warm_mapped_file_enable`). The reference page and the reader of
broker.conf are made from this table. To add a setting, add its attribute here, make the store act on it, and
write the page anew: `python -m penstock.store.setting_page > docs/reference/settings.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_type_hints

from penstock.store.setting_spec import (
    HONOURED,
    JAVA_INT_MAX,
    Origin,
    Section,
    Spec,
    no_effect,
    refused,
    spec_of,
)


class FlushDiskType(StrEnum):
    """Whether a put waits until its message is on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class Dispatch(StrEnum):
    """Who builds queues and index from the log."""

    INLINE = "inline"
    EXTERNAL = "external"


class BrokerRole(StrEnum):
    """What a broker is to its replicas."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


FILES = Section("Paths and file sizes")
HOST = Section("This host")
PUT = Section("Putting")
FLUSH = Section("Flushing")
BUFFERS = Section("New files and write buffers")
GET = Section("Getting and querying")
QUEUE_EXT = Section("Consume queue extension", no_effect("existing extension files are read and kept, none is written"))
DELAY = Section("Delayed messages", no_effect("a broker never waits for one put before the next"))
DELETE = Section("Deleting old files")
DISK = Section("Deleting old files", origin=Origin.SYSTEM_PROPERTY)
REPLICATE = Section("Replication")
DLEDGER = Section("DLedger and light queues", no_effect("there is no DLedger commit log"))
OTHER = Section("Statistics and debugging")
OURS = Section("Penstock's own", origin=Origin.PENSTOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTable:
    """The values, unchecked; `Settings` is the one to use."""

    store_path_root_dir: Annotated[Path, FILES("folder of the store")] = Path("~/store")
    store_path_commit_log: Annotated[Path | None, FILES("folder of the log; unset: `commitlog` in the root")] = None
    read_only_commit_log_store_paths: Annotated[
        str | None, FILES("log folders without new files", no_effect("a store has one commitlog folder"))
    ] = None
    mapped_file_size_commit_log: Annotated[
        int,
        FILES("bytes of a commitlog file", aliases=("mapedFileSizeCommitLog",), low=100, dev=1 << 20),
    ] = 1 << 30
    mapped_file_size_consume_queue: Annotated[
        int,
        FILES(
            "bytes of a consume queue file, rounded up to a multiple of 20",
            aliases=("mapedFileSizeConsumeQueue",),
            low=20,
            high=JAVA_INT_MAX // 20 * 20,
            dev=1000 * 20,
        ),
    ] = 300_000 * 20
    max_hash_slot_num: Annotated[int, FILES("hash slots of an index file", low=1, dev=5000)] = 5_000_000
    max_index_num: Annotated[int, FILES("items of an index file", low=2, dev=20_000)] = 20_000_000

    broker_ip1: Annotated[str, HOST("address in each record's store host", name="brokerIP1")] = "127.0.0.1"
    listen_port: Annotated[int, HOST("port in each record's store host", high=65535)] = 10911

    max_message_size: Annotated[
        int, PUT("bytes of the largest body; the whole record may have 64 KiB more", low=1, dev=512 << 10)
    ] = 4 << 20
    os_page_cache_busy_time_out_mills: Annotated[
        int, PUT("a put answers OS_PAGECACHE_BUSY while another holds the put lock for longer, ms")
    ] = 1000
    use_reentrant_lock_when_put_message: Annotated[
        bool, PUT("mutex instead of spin lock", no_effect("puts always take a mutex"))
    ] = True
    duplication_enable: Annotated[
        bool, PUT("dispatch only what is confirmed", no_effect("the whole log is dispatched"))
    ] = False

    flush_disk_type: Annotated[FlushDiskType, FLUSH("whether a put waits for the disk")] = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: Annotated[int, FLUSH("longest wait of a put for the disk, ms", low=1)] = 5000
    flush_interval_commit_log: Annotated[int, FLUSH("period of the asynchronous flush, ms", low=1)] = 500
    flush_commit_log_timed: Annotated[bool, FLUSH("true: that period is kept; false: a put cuts it short")] = True
    flush_commit_log_least_pages: Annotated[int, FLUSH("flush only with so many new pages")] = 4
    flush_commit_log_thorough_interval: Annotated[int, FLUSH("after so long flush any number of pages, ms")] = 10_000
    flush_interval_consume_queue: Annotated[int, FLUSH("period of the consume queues' flush, ms", low=1)] = 1000
    flush_consume_queue_least_pages: Annotated[int, FLUSH("flush a queue only with so many new pages")] = 2
    flush_consume_queue_thorough_interval: Annotated[
        int, FLUSH("after so long flush any number of pages and write the checkpoint, ms")
    ] = 60_000

    transient_store_pool_enable: Annotated[
        bool,
        BUFFERS("append to locked memory and commit to the file later; with ASYNC_FLUSH on a master only"),
    ] = False
    transient_store_pool_size: Annotated[int, BUFFERS("buffers in the pool, of a commitlog file's size", low=1)] = 5
    fast_fail_if_no_buffer_in_store_pool: Annotated[
        bool, BUFFERS("refuse a new file while the pool has no free buffer")
    ] = False
    commit_interval_commit_log: Annotated[int, BUFFERS("period of the commit from pool to file, ms", low=1)] = 200
    commit_commit_log_least_pages: Annotated[int, BUFFERS("commit only with so many new pages")] = 4
    commit_commit_log_thorough_interval: Annotated[int, BUFFERS("after so long commit any number of pages, ms")] = 200
    warm_mapped_file_enable: Annotated[
        bool,
        BUFFERS(
            "touch every page of a new commitlog file",
            name="warmMapedFileEnable",
            aliases=("warmMappedFileEnable",),
        ),
    ] = False
    flush_least_pages_when_warm_mapped_file: Annotated[
        int,
        BUFFERS(
            "flush each time so many pages were touched (SYNC_FLUSH)",
            name="flushLeastPagesWhenWarmMapedFile",
            aliases=("flushLeastPagesWhenWarmMappedFile",),
            low=1,
        ),
    ] = 4096

    max_transfer_bytes_on_message_in_memory: Annotated[int, GET("bytes of one get, recent messages", low=1)] = 256 << 10
    max_transfer_count_on_message_in_memory: Annotated[int, GET("messages of one get, recent ones", low=1)] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[int, GET("bytes of one get, old messages", low=1)] = 64 << 10
    max_transfer_count_on_message_in_disk: Annotated[int, GET("messages of one get, old ones", low=1)] = 8
    access_message_in_memory_max_ratio: Annotated[
        int, GET("share of the machine's memory that counts as recent, percent", high=100)
    ] = 40
    message_index_enable: Annotated[bool, GET("build the index for queries by key")] = True
    message_index_safe: Annotated[
        bool, GET("start recovery where the index is safe too", no_effect("the index is always completed"))
    ] = False
    max_msgs_num_batch: Annotated[int, GET("most messages a query by key answers", low=1)] = 64
    default_query_max_num: Annotated[int, GET("messages a query by key answers if it does not say", low=1)] = 32
    check_crc_on_recover: Annotated[bool, GET("check bodies during recovery", name="checkCRCOnRecover")] = True

    enable_consume_queue_ext: Annotated[bool, QUEUE_EXT("write extension files")] = False
    mapped_file_size_consume_queue_ext: Annotated[int, QUEUE_EXT("bytes of an extension file", low=1)] = 48 << 20
    bit_map_length_consume_queue_ext: Annotated[int, QUEUE_EXT("bits of the filter map in an extension unit")] = 64

    message_delay_level: Annotated[str, DELAY("the delay of each level, in s, m, h or d", HONOURED)] = (
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    flush_delay_offset_interval: Annotated[
        int, DELAY("period of writing delayOffset.json, ms; by the broker", HONOURED, low=1)
    ] = 10_000
    enable_schedule_async_deliver: Annotated[bool, DELAY("deliver without waiting for each put")] = False
    schedule_async_deliver_max_pending_limit: Annotated[int, DELAY("deliveries under way at once", low=1)] = 2000
    schedule_async_deliver_max_resend_num2_blocked: Annotated[int, DELAY("tries before a level waits", low=1)] = 3

    file_reserved_time: Annotated[int, DELETE("age of a file that may go, hours")] = 72
    delete_when: Annotated[str, DELETE("hours of the day when old files go, joined by `;`")] = "04"
    clean_resource_interval: Annotated[int, DELETE("period of the cleaner, ms", low=1)] = 10_000
    delete_commit_log_files_interval: Annotated[int, DELETE("pause between two commitlog files, ms")] = 100
    delete_consume_queue_files_interval: Annotated[int, DELETE("pause between two queue files, ms")] = 100
    destroy_mapped_file_interval_forcibly: Annotated[
        int,
        DELETE(
            "a file in use is taken away after so long, ms",
            name="destroyMapedFileIntervalForcibly",
            aliases=("destroyMappedFileIntervalForcibly",),
        ),
    ] = 120_000
    redelete_hanged_file_interval: Annotated[int, DELETE("pause before the first file is tried again, ms")] = 120_000
    disk_max_used_space_ratio: Annotated[
        int, DELETE("percent of the disk above which old files go at once, kept within 10 to 95", low=-(2**31))
    ] = 75
    clean_file_forcibly_enable: Annotated[bool, DELETE("delete files that are not old when the disk is full")] = True
    disk_space_warning_level_ratio: Annotated[
        float,
        DISK(
            "share of the disk above which puts are refused",
            name="rocketmq.broker.diskSpaceWarningLevelRatio",
            aliases=("diskSpaceWarningLevelRatio",),
            high=1,
        ),
    ] = 0.90
    disk_space_clean_forcibly_ratio: Annotated[
        float,
        DISK(
            "share of the disk above which files that are not old go too",
            name="rocketmq.broker.diskSpaceCleanForciblyRatio",
            aliases=("diskSpaceCleanForciblyRatio",),
            high=1,
        ),
    ] = 0.85

    broker_role: Annotated[BrokerRole, REPLICATE("ASYNC_MASTER, SYNC_MASTER or SLAVE")] = BrokerRole.ASYNC_MASTER
    ha_listen_port: Annotated[
        int,
        REPLICATE(
            "port a master listens on for its slaves; an ASYNC_MASTER does if this or brokerIP2 is given", high=65535
        ),
    ] = 10912
    ha_master_address: Annotated[
        str | None, REPLICATE("where a slave finds its master's log, `host:port`; unset: name servers tell it")
    ] = None
    ha_send_heartbeat_interval: Annotated[int, REPLICATE("period of heartbeats, ms", low=1)] = 5000
    ha_housekeeping_interval: Annotated[int, REPLICATE("silence after which a connection ends, ms", low=1)] = 20_000
    ha_transfer_batch_size: Annotated[int, REPLICATE("bytes of one frame", low=1)] = 32 << 10
    ha_slave_fallbehind_max: Annotated[int, REPLICATE("bytes behind at which a slave is not available")] = 256 << 20
    slave_timeout: Annotated[int, REPLICATE("longest wait of a put for a slave, ms", low=1)] = 3000
    offset_check_in_slave: Annotated[
        bool, REPLICATE("a slave tells consumers, too, that their offset is none of the queue's")
    ] = False

    enable_dledger_commit_log: Annotated[
        bool,
        DLEDGER(
            "keep the log in DLedger",
            refused("there is no DLedger commit log"),
            name="enableDLegerCommitLog",
            aliases=("enableDLedgerCommitLog",),
        ),
    ] = False
    store_path_dledger_commit_log: Annotated[
        str | None, DLEDGER("folder of the DLedger log", name="storePathDLedgerCommitLog")
    ] = None
    dledger_group: Annotated[str | None, DLEDGER("group name", name="dLegerGroup")] = None
    dledger_peers: Annotated[str | None, DLEDGER("members", name="dLegerPeers")] = None
    dledger_self_id: Annotated[str | None, DLEDGER("this member", name="dLegerSelfId")] = None
    preferred_leader_id: Annotated[str | None, DLEDGER("member that should lead")] = None
    enable_batch_push: Annotated[
        bool, DLEDGER("push entries in batches", name="isEnableBatchPush", aliases=("enableBatchPush",))
    ] = False
    enable_lmq: Annotated[bool, DLEDGER("light message queues", refused("there are no light queues"))] = False
    enable_multi_dispatch: Annotated[
        bool, DLEDGER("one record in several queues", refused("there are no light queues"))
    ] = False
    max_lmq_consume_queue_num: Annotated[int, DLEDGER("light queues", no_effect("there are no light queues"))] = 20_000

    disk_fall_recorded: Annotated[
        bool, OTHER("record how far reads are behind", no_effect("reads do not keep this statistic"))
    ] = True
    enable_schedule_message_stats: Annotated[
        bool, OTHER("count delayed messages", no_effect("delayed messages are counted like others"))
    ] = True
    debug_lock_enable: Annotated[
        bool, OTHER("write thread stacks while a put is slow", no_effect("no thread stacks are written"))
    ] = False
    put_msg_index_high_water: Annotated[
        int, OTHER("unused", no_effect("RocketMQ does not use it either"), name="putMsgIndexHightWater")
    ] = 600_000

    pre_allocate_files: Annotated[
        bool,
        OURS("create the next two commitlog files ahead of need; false: a file when it is needed", dev=False),
    ] = True
    verify_crc_on_read: Annotated[bool, OURS("check the body of each message that is read")] = True
    quarantine_max_bytes: Annotated[
        int,
        OURS(
            "bytes that may be kept aside under `penstock/quarantine`; before there would be more, a start or a repair "
            "asks, or refuses to go on",
            high=2**63 - 1,
            dev=256 << 20,
        ),
    ] = 4 << 30
    disk_enough_free_bytes: Annotated[
        int,
        OURS(
            "while so many bytes are free no put is refused, and while twice as many are free no file goes that is not "
            "old, whatever the ratios say; 0: the ratios alone decide, as in RocketMQ",
            high=2**63 - 1,
            dev=256 << 20,
        ),
    ] = 16 << 30
    disk_min_free_bytes: Annotated[
        int,
        OURS(
            "with fewer bytes free puts are refused, and with fewer than twice as many files go that are not old, "
            "whatever the ratios say; 0: no such limit",
            high=2**63 - 1,
        ),
    ] = 0
    dispatch: Annotated[
        Dispatch,
        OURS(
            "who builds queues and index from the log: the store itself, or with `external` the job "
            "`penstock pipeline dispatch`, while the store only appends"
        ),
    ] = Dispatch.INLINE


def _specs() -> dict[str, Spec]:
    hints = get_type_hints(SettingTable, include_extras=True)
    return {each.name: spec_of(each.name, hints[each.name], each.default) for each in fields(SettingTable)}


SPECS: dict[str, Spec] = _specs()
"""By attribute, in the order of the table."""

BY_NAME: dict[str, Spec] = {name: spec for spec in SPECS.values() for name in (spec.name, *spec.about.aliases)}
"""By RocketMQ's name and by every other spelling that is accepted."""
