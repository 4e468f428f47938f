"""Decodes protobuf bodies with a descriptor set (`protoc --include_imports --descriptor_set_out`). Needs protobuf.

The bytes of another message type may decode without an error, so not every wrong body is reported. A recursive message
cannot be a column, so it is refused. Pure functions.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BadSettings, MissingPackage
from penstock.pipeline.decode.decoder import ArrowKind, Decoder, Undecodable

_MOMENT: Final = "google.protobuf.Timestamp"


def protobuf_decoder(descriptors: bytes, message: str) -> Decoder:
    """Returns the decoder for the message type `message`.

    Raises BadSettings for an invalid descriptor set or an unknown message, MissingPackage without protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError:
        raise MissingPackage("protobuf needs the package protobuf: pip install 'penstock[protobuf]'") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(message)
    except (DecodeError, TypeError) as error:
        raise BadSettings(f"--schema must be a descriptor set with all imports, and is not ({error})") from None
    except KeyError:
        raise BadSettings(
            f"--message '{message}': there is no such message in --schema; write its full name, as in shop.v1.Order"
        ) from None
    kind = _message(descriptor, ())
    factory = message_factory.GetMessageClass(descriptor)

    def value(body: bytes) -> Any:
        try:
            return kind.convert(factory.FromString(body))
        except (DecodeError, ValueError, OverflowError) as error:
            raise Undecodable(f"it is not a {message} ({error})") from None

    return Decoder(kind.type, value)


def _message(descriptor: Any, inside: tuple[str, ...]) -> ArrowKind:
    name = descriptor.full_name
    if name == _MOMENT:
        return ArrowKind(pa.timestamp("us", "UTC"), lambda found: found.ToDatetime(tzinfo=UTC))
    if name in inside:
        raise BadSettings(f"--message: '{name}' contains itself, and such a message has no columns; leave --decode out")
    fields = {field.name: (field, _field(field, (*inside, name))) for field in descriptor.fields}
    if not fields:
        raise BadSettings(f"--message: '{name}' has no fields, and such a message has no columns; leave --decode out")

    def made(found: Any) -> dict[str, Any]:
        return {
            each: None if field.has_presence and not found.HasField(each) else kind.convert(getattr(found, each))
            for each, (field, kind) in fields.items()
        }

    return ArrowKind(pa.struct([pa.field(each, kind.type) for each, (_, kind) in fields.items()]), made)


def _field(field: Any, inside: tuple[str, ...]) -> ArrowKind:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, item = (_one(field.message_type.fields_by_name[name], inside) for name in ("key", "value"))
        return ArrowKind(
            pa.map_(key.type, item.type),
            lambda found: [(key.convert(name), item.convert(found[name])) for name in found],
        )
    one = _one(field, inside)
    if field.is_repeated:
        return ArrowKind(pa.list_(one.type), lambda found: [one.convert(each) for each in found])
    return one


def _one(field: Any, inside: tuple[str, ...]) -> ArrowKind:
    if field.message_type is not None:
        return _message(field.message_type, inside)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return ArrowKind(pa.string(), lambda found: names.get(found, str(found)))
    return ArrowKind(_SCALARS[field.cpp_type]) if field.type != field.TYPE_BYTES else ArrowKind(pa.binary())


_SCALARS: Final = {
    1: pa.int32(),
    2: pa.int64(),
    3: pa.int64(),  # an unsigned number may not fit the signed type
    4: pa.decimal128(20, 0),
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    9: pa.string(),
}
"""Arrow types by `FieldDescriptor.cpp_type`: int32, int64, uint32, uint64, double, float, bool, string."""
