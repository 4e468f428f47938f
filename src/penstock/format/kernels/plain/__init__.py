"""The plain twin of the kernels: reference code that runs anywhere, with the results of the compiled twin.

`__all__` is the one list of kernels: the compiled module, its stub and `penstock.format.kernels` take it from here.
Each module has the name of the include of the compiled twin that has the same kernels.
"""

from penstock.format.kernels.plain.append import Appender, prefault, split_batch
from penstock.format.kernels.plain.arrow_in import encode_puts, number_queues, number_texts, property_texts
from penstock.format.kernels.plain.arrow_out import (
    are_utf8,
    fill_rows,
    find_values,
    gather,
    host_texts,
    is_one_of,
    loose_rows,
    message_ids,
    row_fields,
    split_keys,
    split_properties,
    unit_rows,
)
from penstock.format.kernels.plain.audit import check_chains, number_groups, sum_groups
from penstock.format.kernels.plain.decode import decode_at, decode_records
from penstock.format.kernels.plain.dispatch import (
    RangeBuilder,
    find_property,
    group_rows,
    tag_codes,
)
from penstock.format.kernels.plain.index import find_key, find_keys, index_find, index_put, index_rewind, match_record
from penstock.format.kernels.plain.read import FileWindow, PageReader, QueuePages, ReaderCount, Residency
from penstock.format.kernels.plain.record import (
    TopicTable,
    check_record,
    copy_published,
    crc32,
    encode_record,
    find_record,
    find_valid_end,
    first_torn,
    java_hash,
    publish,
    take_back,
    walk,
    write_blank,
)
from penstock.format.kernels.plain.requests import RequestPath
from penstock.format.kernels.plain.split_records import split_records

__all__ = [
    "Appender",
    "FileWindow",
    "PageReader",
    "QueuePages",
    "RangeBuilder",
    "ReaderCount",
    "RequestPath",
    "Residency",
    "TopicTable",
    "are_utf8",
    "check_chains",
    "check_record",
    "copy_published",
    "crc32",
    "decode_at",
    "decode_records",
    "encode_puts",
    "encode_record",
    "fill_rows",
    "find_key",
    "find_keys",
    "find_property",
    "find_record",
    "find_valid_end",
    "find_values",
    "first_torn",
    "gather",
    "group_rows",
    "host_texts",
    "index_find",
    "index_put",
    "index_rewind",
    "is_one_of",
    "java_hash",
    "loose_rows",
    "match_record",
    "message_ids",
    "number_groups",
    "number_queues",
    "number_texts",
    "prefault",
    "property_texts",
    "publish",
    "row_fields",
    "split_batch",
    "split_keys",
    "split_properties",
    "split_records",
    "sum_groups",
    "tag_codes",
    "take_back",
    "unit_rows",
    "walk",
    "write_blank",
]
