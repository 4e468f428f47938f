"""RocketMQ's remoting protocol as values: frames, headers, codes and bodies. Pure functions, no I/O.

    frame, json_header, binary_header      bytes <-> commands
    command, codes, languages, versions    what a command is made of
    fields, headers                        the arguments of each code, typed
    bodies                                 the JSON bodies of each code, typed
    subscription, signing, compression     what a subscription means, who signed, what is inside a body

The names here are what other layers use most; the modules hold the rest.
"""

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.fields import read, write
from penstock.protocol.frame import FrameReader, encode, encode_parts
from penstock.protocol.versions import Language

__all__ = [
    "Command",
    "FrameReader",
    "Language",
    "RequestCode",
    "ResponseCode",
    "encode",
    "encode_parts",
    "read",
    "write",
]
