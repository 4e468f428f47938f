"""The plain twin of the kernels: reference code that runs anywhere, with the compiled one's results."""

from penstock.format.kernels._plain_append import Appender, populate
from penstock.format.kernels._plain_arrow_in import encode_puts, number_queues, number_texts, property_texts
from penstock.format.kernels._plain_arrow_out import (
    fill_rows,
    find_values,
    gather,
    host_texts,
    loose_rows,
    message_ids,
    row_fields,
    split_keys,
    split_properties,
    unit_rows,
)
from penstock.format.kernels._plain_audit import check_chains, match_items, match_units
from penstock.format.kernels._plain_batch import split_batch
from penstock.format.kernels._plain_columns import (
    TopicTable,
    append_units,
    derive,
    find_property,
    group_rows,
    index_keys,
    tag_codes,
)
from penstock.format.kernels._plain_fields import record_fields
from penstock.format.kernels._plain_holds import Holds
from penstock.format.kernels._plain_index import index_find, index_put, index_rewind
from penstock.format.kernels._plain_log import (
    check_record,
    copy_published,
    crc32,
    encode_record,
    find_record,
    first_torn,
    java_hash,
    publish,
    walk,
    walk_past,
    write_blank,
)
from penstock.format.kernels._plain_pages import PageReader
from penstock.format.kernels._plain_query import find_key, find_keys, match_record
from penstock.format.kernels._plain_range import RangeBuilder
from penstock.format.kernels._plain_tally import add_up, number_alike

__all__ = [
    "Appender",
    "Holds",
    "PageReader",
    "RangeBuilder",
    "TopicTable",
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
    "split_batch",
    "split_keys",
    "split_properties",
    "tag_codes",
    "unit_rows",
    "walk",
    "walk_past",
    "write_blank",
]
