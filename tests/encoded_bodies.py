"""What tests of decoding share: an Avro schema and a protobuf message with a field of each kind, and bodies of them."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "count", "type": "int"}]}}},
        {"name": "extra", "type": {"type": "map", "values": "Line"}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "either", "type": ["null", "int", "string"]},
    ],
}  # fmt: skip


def avro_body(order: dict[str, Any]) -> bytes:
    """A single datum without a header."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), order)
    return out.getvalue()


def proto() -> descriptor_pb2.FileDescriptorSet:
    """What protoc would make of a message with a field of each kind."""
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    order = file.message_type.add(name="Order")
    fields = descriptor_pb2.FieldDescriptorProto
    entry = order.nested_type.add(name="ExtraEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=fields.TYPE_STRING, label=fields.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=fields.TYPE_INT32, label=fields.LABEL_OPTIONAL)
    one, many = fields.LABEL_OPTIONAL, fields.LABEL_REPEATED
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", fields.TYPE_UINT64, one, ""),
            ("name", fields.TYPE_STRING, one, ""),
            ("raw", fields.TYPE_BYTES, one, ""),
            ("counts", fields.TYPE_INT32, many, ""),
            ("colour", fields.TYPE_ENUM, one, ".shop.Colour"),
            ("at", fields.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
            ("missing", fields.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
            ("extra", fields.TYPE_MESSAGE, many, ".shop.Order.ExtraEntry"),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=fields.TYPE_MESSAGE, label=one, type_name=".shop.Tree")
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file])


def proto_body(at: datetime, **fields: Any) -> bytes:
    """A `shop.Order`."""
    pool = descriptor_pool.DescriptorPool()
    for file in proto().file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)
    order.at.FromDatetime(at)
    body: bytes = order.SerializeToString()
    return body
