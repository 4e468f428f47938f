"""RocketMQ's remoting protocol as values: frames, headers, codes and bodies. Pure functions, no I/O.

    frame, json_header, binary_header      convert bytes to commands and back
    command, codes, versions               a command and its parts
    fields, headers                        the typed arguments of each request code
    bodies                                 the typed JSON bodies of each request code
    subscription, signing, compression     subscriptions, ACL signatures, compressed bodies

This package exports the names that other layers use most. Import all other names from the modules.
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
