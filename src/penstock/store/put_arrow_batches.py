"""Puts Arrow record batches, and checks them as a put would. Needs pyarrow.

A batch is planned and checked as a whole, then appended. It is stored completely or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import BadMessage
from penstock.format.arrow_put_columns import PutBatch
from penstock.format.hosts import encode_host
from penstock.format.put_rows import PutLimits, PutRows, RowRefused, plan_puts
from penstock.store.encode_message import PutRefused, prepare
from penstock.store.message import ArrowResult, Message, PutStatus

if TYPE_CHECKING:
    from penstock.store.append import PutPath
    from penstock.store.settings import Settings


def put_batch(put_path: PutPath, settings: Settings, batch: pa.RecordBatch) -> ArrowResult:
    """Stores all rows; see `MessageStore.put_arrow`."""
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a pyarrow.RecordBatch is needed, not {type(batch).__name__}")
    return put_path.put_rows(lambda: _plan_or_refuse(batch, settings))


def check_batch(batch: pa.RecordBatch, settings: Settings) -> None:
    """Raises RowRefused if a put would refuse the batch. It has the reason and the row number; -1: the whole batch."""
    try:
        _plan(batch, settings)
    except _BatchRefused as refused:
        raise RowRefused(refused.number, refused.reason) from None


class _BatchRefused(Exception):
    """A batch is refused because of row `number`; -1 means as a whole."""

    def __init__(self, number: int, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.number, self.status, self.reason = number, status, reason


def _plan_or_refuse(batch: pa.RecordBatch, settings: Settings) -> PutRows:
    try:
        return _plan(batch, settings)
    except _BatchRefused as refused:
        reason = refused.reason if refused.number < 0 else f"row {refused.number}: {refused.reason}"
        raise PutRefused(refused.status, reason) from None


def _plan(batch: pa.RecordBatch, settings: Settings) -> PutRows:
    limits = PutLimits(
        settings.max_message_size,
        settings.max_record_size,
        len(settings.delay_levels),
        encode_host(Message("", b"").born_host),
        encode_host(settings.store_host),
        settings.enabled_append_prop_crc,
    )
    try:
        columns = PutBatch(batch)
        return plan_puts(columns.columns(), limits)
    except (BadMessage, ValueError) as error:
        raise _BatchRefused(-1, PutStatus.MESSAGE_ILLEGAL, str(error)) from None
    except RowRefused as refused:
        why = _explain(columns, refused, settings)
        raise _BatchRefused(refused.number, why.status, why.reason) from None


def _explain(columns: PutBatch, refused: RowRefused, settings: Settings) -> PutRefused:
    """Returns the refusal that a put of the refused row alone would get."""
    if refused.reason:
        return PutRefused(PutStatus.MESSAGE_ILLEGAL, refused.reason)
    try:
        prepare(
            Message(**columns.fields(refused.number)),
            store_host=settings.store_host,
            max_message_size=settings.max_message_size,
            max_record_size=settings.max_record_size,
            delay_levels=len(settings.delay_levels),
            has_record_crc=settings.enabled_append_prop_crc,
        )
    except PutRefused as why:
        return why
    raise AssertionError(f"row {refused.number} was refused, but a put accepts it")
