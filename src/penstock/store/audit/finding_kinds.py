"""Every kind of finding, with what it means and what helps. `docs/reference/verify.md` is this table."""

from __future__ import annotations

from typing import Final

from penstock.store.audit.findings import FindingKind, Severity

_RESTORE = "restore the file from a copy or a replica; without one, `penstock store repair` makes the rest usable"
_REPAIR = "`penstock store repair` keeps these bytes aside and puts a valid record over them, or restore a copy"
_REBUILD = "`penstock store rebuild` makes queues and index anew from the log"
_START = "a start mends it: `penstock store recover`"
_CUT = "a start cuts it off and keeps it: `penstock store recover`"
_MOVE = "move it elsewhere; a store does not start with it"
_SIZES = "say the size that the files were made with (--set), or restore the file from a copy"
_NOTHING = "nothing needs to be done"
_COPY = "put a good copy in place, or its backup `.bak`"

KINDS: Final[dict[str, FindingKind]] = {}


def _kind(severity: Severity, name: str, meaning: str, remedy: str) -> FindingKind:
    made = FindingKind(name, severity, meaning, remedy)
    KINDS[name] = made
    return made


def _error(name: str, meaning: str, remedy: str) -> FindingKind:
    return _kind("error", name, meaning, remedy)


def _note(name: str, meaning: str, remedy: str = _NOTHING) -> FindingKind:
    return _kind("note", name, meaning, remedy)


# -- files ---------------------------------------------------------------------------------------------------------

FOREIGN_FILE = _error("foreign-file", "a file or folder lies where only data files may", _MOVE)
LOG_FILE_MISSING = _error("log-file-missing", "a commitlog file between others is not there", _RESTORE)
LOG_FILE_EMPTY = _error("log-file-empty", "a commitlog file has no bytes", _RESTORE)
LOG_FILE_SIZE = _error("log-file-size", "a commitlog file has another size than the others", _SIZES)
LOG_FILE_NAME = _error("log-file-name", "a commitlog file's name is not a multiple of the file size", _MOVE)
QUEUE_FILE_MISSING = _error("queue-file-missing", "a consume queue file between others is not there", _REBUILD)
QUEUE_FILE_EMPTY = _error("queue-file-empty", "a consume queue file has no bytes", _REBUILD)
QUEUE_FILE_SIZE = _error("queue-file-size", "a consume queue file has another size than the others", _REBUILD)
QUEUE_FILE_NAME = _error("queue-file-name", "a consume queue file's name is not a multiple of the file size", _MOVE)
INDEX_FILE_EMPTY = _error("index-file-empty", "an index file has no bytes", _REBUILD)
INDEX_FILE_SIZE = _error(
    "index-file-size",
    "an index file has another size than maxHashSlotNum and maxIndexNum say, and was not looked into",
    "say those it was made with (--set maxHashSlotNum=... --set maxIndexNum=...), or rebuild the index",
)

# -- log -----------------------------------------------------------------------------------------------------------

RECORD_SIZE = _error("record-size", "a record's size is not what its parts say, or runs past the file's end", _REPAIR)
RECORD_MAGIC = _error("record-magic", "no record's magic stands where a record must begin", _REPAIR)
RECORD_CRC = _error("record-crc", "a body does not have the CRC that its record says", _REPAIR)
RECORD_POSITION = _error("record-position", "a record says that it lies elsewhere", _REPAIR)
RECORD_LENGTHS = _error("record-lengths", "the lengths of body, topic and properties do not make the size", _REPAIR)
LOG_HOLE = _error("log-hole", "the log has zeros where records must be, and goes on behind them", _REPAIR)
FILLER_IN_MIDDLE = _error("filler-in-middle", "a filler does not end where its file ends, or hides records", _REPAIR)
TORN_TAIL = _error("torn-tail", "a crash left bytes behind the last record that are none", _CUT)
STALE_BYTES = _error("stale-bytes", "bytes that are no record lie behind the last record, after a clean exit", _CUT)
RECORD_TOPIC = _error(
    "record-topic", "a record has a topic that no queue can have", "its messages have no queue; read them by `log`"
)
RECORD_QUEUE = _error(
    "record-queue",
    "a record has a queue id or a queue offset below 0",
    "its messages have no queue; read them by `log`",
)
RECORD_TIME = _error(
    "record-time",
    "a record was stored before 2010 or more than a day from now",
    "check the clock of the broker's host; searches by time do not find these messages",
)
TIME_STEP_BACK = _note(
    "time-step-back",
    "a record's store time is more than a minute before that of the record before it",
    "check the clock of the broker's host; searches by time are off around here",
)
REPAIRED = _note("repaired", "a damaged range that a repair has put a record over")
NOT_CLOSED = _note("not-closed", "the store was not closed cleanly", "the next start recovers it")
UNSETTLED = _note(
    "unsettled",
    "the store is in use, and its owner had not yet put its newest records into their queues",
    "ask again, or when the store is closed",
)

# -- queues --------------------------------------------------------------------------------------------------------

UNIT_MISSING = _error("unit-missing", "a record has no unit in its queue", _REBUILD)
UNIT_GAP = _error("unit-gap", "a queue has zeros between its units, and ends there for its readers", _REBUILD)
UNIT_GARBAGE = _error("unit-garbage", "20 bytes of a queue are no unit", _REBUILD)
UNIT_OFFSET = _error("unit-offset", "a unit points to a place where no record begins", _REBUILD)
UNIT_SIZE = _error("unit-size", "a unit gives another size than its record has", _REBUILD)
UNIT_TAGS = _error("unit-tags", "a unit's tags code is not that of its record", _REBUILD)
UNIT_TOPIC = _error("unit-topic", "a unit points to a record of another topic", _REBUILD)
UNIT_QUEUE = _error("unit-queue", "a unit points to a record of another queue", _REBUILD)
UNIT_REPEATED = _error("unit-repeated", "a unit points to a record that has another unit", _REBUILD)
UNIT_TRANSACTION = _error("unit-transaction", "a unit points to a prepared or rolled back record", _REBUILD)
UNIT_PAST_LOG = _error("unit-past-log", "a unit points behind the log's end", _REBUILD)
UNIT_BLANK = _error("unit-blank", "a unit that stands for nothing follows the queue's last record", _REBUILD)
QUEUE_MINIMUM = _error("queue-minimum", "a queue begins behind its oldest record in the log", _REBUILD)
QUEUE_OFFSET_GAP = _error(
    "queue-offset-gap",
    "no record has these queue offsets, though the log is whole in between",
    "the messages are not in this store; compare with a replica",
)
QUEUE_OFFSET_REPEATED = _error(
    "queue-offset-repeated",
    "two records have the same topic, queue and queue offset, and the queue can point to one only",
    "the others are read by key, by id or by `log`",
)
QUEUE_RESTARTED = _note(
    "queue-restarted",
    "a queue begins anew at 0: its topic was deleted and made again, and its older records have no units",
)
TOPIC_DELETED = _note("topic-deleted", "records of a topic that was deleted; they have no queue")
UNITS_BELOW_MINIMUM = _note("units-below-minimum", "units point to records that retention has deleted")
QUEUE_GONE = _note("queue-gone", "a queue has no record left in the log")
UNIT_EXTENSION = _note(
    "unit-extension", "units point to an extension file that is not there; their tags could not be checked"
)

# -- index ---------------------------------------------------------------------------------------------------------

INDEX_COUNT = _error("index-count", "an index file's header counts more items than fit", _REBUILD)
INDEX_SLOT_COUNT = _error("index-slot-count", "an index file's header does not count its slots in use", _REBUILD)
INDEX_TIMES = _error("index-times", "an index file's header has other times than its first and last record", _REBUILD)
INDEX_OFFSETS = _error(
    "index-offsets", "an index file's header has other offsets than its first and last item", _REBUILD
)
INDEX_CHAIN = _error("index-chain", "an item does not point to the one before it in its slot", _REBUILD)
INDEX_CYCLE = _error("index-cycle", "an item points to itself or to a later one", _REBUILD)
INDEX_SLOT = _error("index-slot", "a slot does not point to its newest item", _REBUILD)
INDEX_DANGLING = _error("index-dangling", "an item points to no record with such a key", _REBUILD)
INDEX_PAST_LOG = _error("index-past-log", "an item points behind the log's end", _REBUILD)
INDEX_ITEM_TIME = _error("index-item-time", "an item's seconds are not those of its record", _REBUILD)
INDEX_KEY_MISSING = _error("index-key-missing", "keys of records are not in the index", _REBUILD)
INDEX_REPEATED = _note(
    "index-repeated", "keys are in the index more than once, as RocketMQ leaves them after a restart"
)
INDEX_BELOW_MINIMUM = _note("index-below-minimum", "items point to records that retention has deleted")
INDEX_OLD_COUNT = _note("index-old-count", "a header counts every key as a slot, as RocketMQ did up to 4.7.0")

# -- checkpoint and config -----------------------------------------------------------------------------------------

CHECKPOINT_SIZE = _error("checkpoint-size", "the checkpoint does not have 4096 bytes", _START)
CHECKPOINT_AHEAD = _error(
    "checkpoint-ahead",
    "the checkpoint is newer than the newest record",
    "if the store crashes now, recovery may begin too late; a start puts it right: `penstock store recover`",
)
CHECKPOINT_MISSING = _note("checkpoint-missing", "there is no checkpoint", "after a crash a start walks the whole log")
CONFIG_UNREADABLE = _error("config-unreadable", "a config file is empty or garbage", _COPY)
CONFIG_MISSING = _note("config-missing", "a config file does not exist", "it is made when it is needed")
CONSUMER_OFFSET_PAST_END = _error(
    "consumer-offset-past-end",
    "a group's next offset lies behind its queue's end",
    "set the group's offset back; until the queue reaches it, the group gets nothing or starts over",
)
CONSUMER_OFFSET_BELOW_MINIMUM = _note(
    "consumer-offset-below-minimum",
    "a group has not read messages that retention has deleted",
    "it goes on at the minimum; what lies between is lost to it",
)
CONSUMER_OFFSET_QUEUE_GONE = _note("consumer-offset-queue-gone", "a group has an offset in a queue that has no files")
DELAY_OFFSET_PAST_END = _error(
    "delay-offset-past-end",
    "the next offset of a delay level lies behind its queue's end",
    "set it to the queue's end; until the queue reaches it, delayed messages are not delivered",
)
DELAY_OFFSET_BELOW_MINIMUM = _note(
    "delay-offset-below-minimum",
    "delayed messages were deleted before they were delivered",
    "delivery goes on at the minimum",
)
DELAY_LEVEL_UNKNOWN = _error(
    "delay-level-unknown",
    "an offset of a delay level that messageDelayLevel does not have",
    "set messageDelayLevel right",
)
UNKNOWN_TOPIC = _error(
    "unknown-topic",
    "a config file names a topic that neither topics.json nor the store knows",
    "remove the entry, or restore topics.json",
)
TOPIC_NOT_CONFIGURED = _note("topic-not-configured", "a topic has messages and is not in topics.json")
