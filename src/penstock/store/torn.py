"""Records that a power loss tore where no check looks.

A body has its CRC, and the lengths must add up; but if the sectors behind a whole body never reached the disk, the
topic or the properties are zeros there, and the record still passes. So a start does not believe a record if a whole
sector's part of them is zero. No client writes such properties; one that did, at such a place, would find its message
under `penstock/quarantine/` after a crash.
"""

from __future__ import annotations

import numpy as np

from penstock.format import kernels

SECTOR = 512


def first_torn(data: memoryview, base: int, rows: kernels.Rows) -> int:
    """The number of the first row whose topic or properties have lost a sector, -1 if none has."""
    starts = rows["physical_offset"] - base
    ends = starts + rows["size"] - 2 * (rows["properties_length"] == 0)  # then the record ends with their length, zero
    boundaries = -(-(starts + rows["topic_at"]) // SECTOR) * SECTOR
    crossing = np.flatnonzero(boundaries < ends)
    content = np.frombuffer(data, np.uint8)
    suspects = crossing[(content[boundaries[crossing]] == 0) | (boundaries[crossing] + SECTOR < ends[crossing])]
    for number in suspects.tolist():
        end = int(ends[number])
        for boundary in range(int(boundaries[number]), end, SECTOR):
            if not content[boundary : min(boundary + SECTOR, end)].any():
                return int(number)
    return -1
