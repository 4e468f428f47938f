"""Bodies as values: text, JSON, Avro or protobuf, decoded in columns on Spark's workers.

A body that does not decode is data, not an exception: it has no value, and a sentence says why.
"""

from penstock.pipeline.decode.decoder import KINDS, Decode, Decoder, make_decoder

__all__ = ["KINDS", "Decode", "Decoder", "make_decoder"]
