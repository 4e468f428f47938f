"""Decodes columns of message bodies on Spark's workers: text, JSON, Avro or protobuf.

A body that cannot be decoded raises no exception. Its value is null, and a sentence in another column says why.
"""

from penstock.pipeline.decode.decoder import KINDS, Decode, Decoder, make_decoder

__all__ = ["KINDS", "Decode", "Decoder", "make_decoder"]
