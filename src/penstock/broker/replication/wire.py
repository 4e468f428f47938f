"""What goes over a replication connection, as RocketMQ has it; big-endian, and nothing else is sent.

    slave to master     OFFSET  SIZE  DESCRIPTION
                             0     8  the offset up to which the slave has the log; also its heartbeat

    master to slave     OFFSET  SIZE  DESCRIPTION
                             0     8  where the bytes lie in the log
                             8     4  how many there are; 0: a heartbeat
                            12     n  the bytes, which never cross the end of a log file

A slave's first report says where it wants to begin; 0 means the beginning of the master's last file, and -1, which only
Penstock's masters know and RocketMQ's ignore, the beginning of all that the master has. Nothing here is
protected: neither side says who it is, and there is no checksum besides that of the records.
"""

from __future__ import annotations

import struct
from typing import Final

REPORT: Final = struct.Struct(">q")
FRAME: Final = struct.Struct(">qi")
EVERYTHING: Final = -1
