"""What a worker reads from a cluster: ranges of queues, pulled from the brokers that have them.

The records stay bytes: a page is made of what the brokers sent by the kernels that make pages of a store's files.
Pickled by the driver; printed, it shows no secret. Needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.format.arrow_rows import rows_to_batch
from penstock.format.arrow_schema import select_columns
from penstock.pipeline.cluster_ahead import PulledAhead
from penstock.pipeline.cluster_link import ClusterAccess, ClusterLink
from penstock.pipeline.cluster_pull import Piece, RangePuller
from penstock.pipeline.places import Page
from penstock.pipeline.ranges import Span
from penstock.protocol.subscription import EVERYTHING
from penstock.store.arrow_results import MAX_BYTES, MAX_ROWS


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """`tags` are compared by the brokers, by their hashes: what comes may be more than was asked for, never less."""

    access: ClusterAccess
    spans: tuple[Span, ...]
    tags: str = EVERYTHING
    fail_on_data_loss: bool = True

    def pages(self, columns: Sequence[str]) -> Iterator[Page]:
        """Raises DataLost, and Unreachable where a broker stays away, Refused where it refuses."""
        schema = select_columns(columns)
        with ClusterLink(self.access, reached=True) as link:
            reading = _Reading(link, self)
            try:
                while pieces := link.run(reading.page()):
                    yield _page(pieces, schema)
            finally:
                link.run(reading.close())


class _Reading:
    """Puts pieces together until they make a page. Belongs to the link's loop."""

    def __init__(self, link: ClusterLink, task: ClusterTask) -> None:
        puller = RangePuller(link, tags=task.tags, fail_on_data_loss=task.fail_on_data_loss)
        self._ahead = PulledAhead(puller, task.spans)
        self._left_over: Piece | None = None

    async def page(self) -> list[Piece]:
        """The pieces of one page, all from one broker; none at the end."""
        pieces: list[Piece] = []
        rows = size = 0
        while rows < MAX_ROWS and size < MAX_BYTES:
            piece, self._left_over = self._left_over or await self._ahead.next(), None
            if piece is None:
                break
            if pieces and piece.queue.broker != pieces[0].queue.broker:
                self._left_over = piece
                break
            pieces.append(piece)
            rows += len(piece.rows) + len(piece.flaws)
            size += len(piece.records)
        return pieces

    async def close(self) -> None:
        await self._ahead.close()


def _page(pieces: list[Piece], schema: pa.Schema) -> Page:
    records = b"".join(piece.records for piece in pieces)
    rows = np.concatenate([piece.rows for piece in pieces])
    sizes = rows["size"].astype(np.int64)
    batch = rows_to_batch(records, np.cumsum(sizes) - sizes, rows, schema)
    return Page(pieces[0].queue.broker, batch, tuple(flaw for piece in pieces for flaw in piece.flaws))
