"""Decodes bodies in columns on Spark's workers: text, JSON, Avro or protobuf.

A body that cannot be decoded is data, not an exception: it has no value, and a sentence says why.
"""

from penstock.pipeline.decode.decoder import KINDS, Decode, Decoder, make_decoder

__all__ = ["KINDS", "Decode", "Decoder", "make_decoder"]
