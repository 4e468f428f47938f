"""What MessageStore does with Arrow record batches. Importing this needs no pyarrow; calling does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import MissingPackage
from penstock.store.arrow_results import ArrowPage, ArrowResult, LogPage
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.get import Getter
from penstock.store.put import Putter
from penstock.store.settings import Settings
from penstock.store.statistics import Statistics
from penstock.store.status import GetStatus
from penstock.store.tag_filter import EVERYTHING

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.store.arrow_get import ArrowReader

MAX_ROWS = 20_000
"""Pages of this size stay in the processor's cache while their columns are made."""
MAX_BYTES = 8 << 20


class ArrowMethods:
    """The part of MessageStore that takes and gives Arrow record batches."""

    settings: Settings
    log: CommitLog
    queues: ConsumeQueues
    statistics: Statistics
    _getter: Getter

    def _open_putter(self) -> Putter:
        raise NotImplementedError("the store says who puts")

    def catch_up(self) -> None:
        raise NotImplementedError("the store says how far it is")

    def _check_open(self) -> None:
        raise NotImplementedError("the store knows whether it is open")

    def put_arrow(self, batch: pa.RecordBatch) -> ArrowResult:
        """Stores the rows of a record batch, next to each other in the log, with one flush.

        Columns: `topic`, `body`; optionally `keys` (list of strings, or a string), `tags`, `properties` (map of
        strings), `queue_id`, `delay_level`, `flag`, `born_timestamp` (a time, or milliseconds). All rows are checked
        before anything is written; one that may not be stored has the batch refused, and `reason` says which and why.

        A batch that fits a log file becomes visible at once. A larger one is split at file ends into as many pieces as
        it needs, and each piece becomes visible at once.
        """
        with _needing_pyarrow():
            from penstock.store.arrow_put import put_batch
        return put_batch(self._open_putter(), self.settings, batch)

    def get_arrow(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] | None = None,
    ) -> ArrowPage:
        """Messages of a queue from `offset` on as a record batch: at least one, if there is one.

        `max_bytes` counts whole records. A page may end before both bounds are reached, where a file ends; the page
        says where to go on. `columns` are names of `penstock.format.arrow_schema.MESSAGE_SCHEMA`.
        """
        reader = self._arrow_reader(columns)
        self.catch_up()
        answer = self._getter.get(topic, queue_id, offset, 0, EVERYTHING, self.log.confirmed_offset)
        queue = self.queues.find(topic, queue_id)
        if answer.status is GetStatus.NO_MATCHED_MESSAGE and queue is not None and max_messages > 0:
            page = reader.read_queue(queue, offset, max_messages, max_bytes)
        else:
            page = ArrowPage(
                answer.status, answer.next_begin_offset, answer.min_offset, answer.max_offset, reader.nothing()
            )
        self.statistics.count_arrow_page(page)
        return page

    def log_arrow(
        self,
        start_offset: int = 0,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] | None = None,
        max_messages: int = MAX_ROWS,
    ) -> LogPage:
        """Records of the log, of every topic, and the offset at which to go on.

        The first row is the first record that starts at or behind `start_offset`, which may be any byte. There is at
        least one row, unless the log ends here. Bytes that are no record end a page, and are passed over at the
        beginning of the next one, whose first row then lies behind `start_offset`.
        """
        reader = self._arrow_reader(columns)
        self._check_open()
        return reader.read_log(start_offset, max_messages, max_bytes)

    def _arrow_reader(self, columns: Sequence[str] | None) -> ArrowReader:
        with _needing_pyarrow():
            from penstock.format.arrow_schema import select_columns
            from penstock.store.arrow_get import ArrowReader
        return ArrowReader(self.log, select_columns(columns), verify_crc=self.settings.verify_crc_on_read)


@contextmanager
def _needing_pyarrow() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "pyarrow":
            raise
        raise MissingPackage("Arrow batches need the package pyarrow: pip install 'penstock[arrow]'") from None
