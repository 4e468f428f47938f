"""The kernels: what touches every message, compiled where there was a compiler, in plain Python everywhere.

`select` chooses the twin for the whole process; the environment variable PENSTOCK_KERNELS (auto, compiled,
plain) chooses it at import. Call the functions through this module (`kernels.walk(...)`): names imported from
it stay with the twin that was active at that time.

Positions count from the start of `data`, which is a whole log file or a suffix of one and so ends where the
file ends; `base` is the physical offset of its first byte. No function reads or writes outside the buffers it
is given, whatever they hold.
"""

from __future__ import annotations

import importlib
import logging
import os
import types

from penstock.errors import BadSettings
from penstock.format.kernels import _plain
from penstock.format.kernels._plain import (
    Appender,
    Holds,
    PageReader,
    RangeBuilder,
    TopicTable,
    add_up,
    append_units,
    check_chains,
    check_record,
    copy_published,
    crc32,
    derive,
    encode_puts,
    encode_record,
    fill_rows,
    find_key,
    find_keys,
    find_property,
    find_record,
    find_values,
    first_torn,
    gather,
    group_rows,
    host_texts,
    index_find,
    index_keys,
    index_put,
    index_rewind,
    java_hash,
    loose_rows,
    match_items,
    match_record,
    match_units,
    message_ids,
    number_alike,
    number_queues,
    number_texts,
    populate,
    property_texts,
    publish,
    record_fields,
    row_fields,
    split_batch,
    split_keys,
    split_properties,
    tag_codes,
    unit_rows,
    walk,
    walk_past,
    write_blank,
)
from penstock.format.kernels._plain_log import view_of
from penstock.format.kernels._types import (
    Bools,
    Buffer,
    Ints,
    ListColumn,
    Longs,
    MapColumn,
    PutTable,
    QueuePart,
    Rows,
    TextColumn,
    Topics,
    UnitRun,
    WritableBuffer,
)

__all__ = [
    "Appender",
    "Bools",
    "Buffer",
    "Holds",
    "Ints",
    "ListColumn",
    "Longs",
    "MapColumn",
    "PageReader",
    "PutTable",
    "QueuePart",
    "RangeBuilder",
    "Rows",
    "TextColumn",
    "TopicTable",
    "Topics",
    "UnitRun",
    "WritableBuffer",
    "active",
    "add_up",
    "append_units",
    "check_chains",
    "check_record",
    "copy_published",
    "crc32",
    "derive",
    "encode_puts",
    "encode_record",
    "fill_rows",
    "find_key",
    "find_keys",
    "find_property",
    "find_record",
    "find_values",
    "first_torn",
    "gather",
    "group_rows",
    "host_texts",
    "index_find",
    "index_keys",
    "index_put",
    "index_rewind",
    "java_hash",
    "loose_rows",
    "match_items",
    "match_record",
    "match_units",
    "message_ids",
    "number_alike",
    "number_queues",
    "number_texts",
    "populate",
    "property_texts",
    "publish",
    "record_fields",
    "row_fields",
    "select",
    "split_batch",
    "split_keys",
    "split_properties",
    "tag_codes",
    "unit_rows",
    "view_of",
    "walk",
    "walk_past",
    "write_blank",
]

active = "plain"
_warned = False


def select(name: str) -> str:
    """Binds the kernels' names to the twin called 'compiled' or 'plain' ('auto': the first that is there)."""
    global active
    if name not in ("auto", "compiled", "plain"):
        raise BadSettings(f"PENSTOCK_KERNELS: '{name}' is not one of auto, compiled, plain")
    twin, chosen = _plain, "plain"
    if name != "plain":
        try:
            twin, chosen = _import_compiled(), "compiled"
        except ImportError as error:
            if name == "compiled":
                raise BadSettings(
                    f"the compiled kernels are not there ({error}); "
                    "install with a C compiler and Cython, or choose PENSTOCK_KERNELS=plain"
                ) from error
            _warn_once(error)
    globals().update({kernel: getattr(twin, kernel) for kernel in _plain.__all__})
    active = chosen
    return active


def _import_compiled() -> types.ModuleType:
    """Raises ImportError also where the module was built from other sources than these."""
    module = importlib.import_module(f"{__name__}._compiled")
    missing = [kernel for kernel in _plain.__all__ if not hasattr(module, kernel)]
    if missing:
        raise ImportError(f"it was built from other sources and has no {missing[0]}")
    return module


def _warn_once(error: ImportError) -> None:
    global _warned
    if not _warned:
        _warned = True
        logging.getLogger("penstock").warning(
            "penstock: running on the plain kernels, which are many times slower, "
            "because the compiled ones cannot be imported (%s)",
            error,
        )


select(os.environ.get("PENSTOCK_KERNELS", "auto"))
