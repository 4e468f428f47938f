"""What MessageStore finds by key: the records that the index, and the log behind each of its hits, tell of."""

from __future__ import annotations

from penstock.errors import BadStore
from penstock.format.kernels import Longs
from penstock.store.commit_log import CommitLog
from penstock.store.dispatch import Dispatcher
from penstock.store.layout import Layout
from penstock.store.query import Hits, KeyQuery
from penstock.store.settings import Settings


class KeyMethods:
    """The part of MessageStore that asks the index."""

    settings: Settings
    layout: Layout
    log: CommitLog
    dispatcher: Dispatcher
    _keys: KeyQuery | None
    """None if messageIndexEnable is false."""
    _closed: bool

    def catch_up(self) -> None:
        raise NotImplementedError("the store says how far it is")

    def _check_open(self) -> None:
        raise NotImplementedError("the store knows whether it is open")

    def query(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 2**63 - 1, max_messages: int | None = None
    ) -> Hits:
        """Records with this topic and key (or unique key), stored within the bounds; the newest, oldest first.

        At most `max_messages`, or defaultQueryMaxNum if it is not given, and never more than maxMsgsNumBatch.
        """
        keys = self._key_query()
        log_end = self.log.confirmed_offset
        if self._closed or self.dispatcher.position < log_end:
            self.catch_up()
        settings = self.settings
        wanted = settings.default_query_max_num if max_messages is None else max_messages
        hits = keys.find(topic, key, begin_ms, end_ms, min(wanted, settings.max_msgs_num_batch), log_end)
        self._check_open()
        return hits

    def query_many(
        self, topic: str, keys: list[str], begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> tuple[Longs, Longs]:
        """Where all records with any of many keys lie: numbers of the keys, and physical offsets, as two arrays.

        As exact as `query`, without its limit, and much faster for each key; `look_up` reads a record.
        """
        key_query = self._key_query()
        self.catch_up()
        found = key_query.find_many(topic, keys, begin_ms, end_ms)
        self._check_open()
        return found

    def _key_query(self) -> KeyQuery:
        if self._keys is None:
            raise BadStore(
                "there is no index: messageIndexEnable is false; set it, and run `penstock store rebuild --index`",
                path=self.layout.root,
            )
        return self._keys
