"""RocketMQ's formats: conversion between bytes and values. Pure functions, no I/O.

    record, properties, hosts, sys_flag, message_id, topics, delay, batch   one message
    queue_unit, queue_ext, index_layout, checkpoint, fastjson               the other files of a store
    kernels, rows, scan                                                     many records at once
    put_rows, arrow_puts, arrow_rows                                        columns and Arrow batches of messages
    constants, config_tables, damage_placeholder                            shared values, config files, repairs
    typed_decoding                                                          the first use of a type by msgspec

This package exports the names that other layers use most. Import the other names from the modules. The package does not
export `scan.scan`, because that name would hide the module `scan`.
"""

from penstock.format import kernels
from penstock.format.batch import BatchItem, decode_batch_body, encode_batch_body
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.format.delay import DEFAULT_DELAY_LEVELS, deliver_timestamp, parse_delay_levels
from penstock.format.hosts import decode_host, encode_host
from penstock.format.index_layout import (
    IndexGeometry,
    IndexHeader,
    IndexItem,
    key_hash,
    pack_item,
    unpack_item,
)
from penstock.format.message_id import UniqueIds, decode_message_id, encode_message_id, make_unique_id
from penstock.format.properties import check_property, decode_properties, encode_properties, join_properties
from penstock.format.queue_ext import ExtUnit, decode_ext_unit, ext_offset
from penstock.format.queue_unit import PRE_BLANK, UNIT, UNIT_SIZE, is_ext_address, pack_unit, unpack_unit
from penstock.format.record import Record, decode_record, encode_record, record_size, tags_code
from penstock.format.scan import Blank, Damage, Scan, ScanBatch
from penstock.format.scan_rows import ROW, Reason
from penstock.format.topics import check_topic, is_legal_topic

__all__ = [
    "CHECKPOINT_SIZE",
    "DEFAULT_DELAY_LEVELS",
    "PRE_BLANK",
    "ROW",
    "UNIT",
    "UNIT_SIZE",
    "BatchItem",
    "Blank",
    "Checkpoint",
    "Damage",
    "ExtUnit",
    "IndexGeometry",
    "IndexHeader",
    "IndexItem",
    "Reason",
    "Record",
    "Scan",
    "ScanBatch",
    "UniqueIds",
    "check_property",
    "check_topic",
    "decode_batch_body",
    "decode_ext_unit",
    "decode_host",
    "decode_message_id",
    "decode_properties",
    "decode_record",
    "deliver_timestamp",
    "encode_batch_body",
    "encode_host",
    "encode_message_id",
    "encode_properties",
    "encode_record",
    "ext_offset",
    "is_ext_address",
    "is_legal_topic",
    "join_properties",
    "kernels",
    "key_hash",
    "make_unique_id",
    "pack_item",
    "pack_unit",
    "parse_delay_levels",
    "record_size",
    "tags_code",
    "unpack_item",
    "unpack_unit",
]
