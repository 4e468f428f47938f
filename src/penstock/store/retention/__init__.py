"""Retention: deletes old files, and refuses puts when the disk is full.

`cleaner` has two threads: one deletes, one watches the disk, so that slow deletion never delays the measurement.
`policy` decides what may be deleted and why, without side effects; `explain` shows its decisions in advance. `derived`
cleans queues and index; `topics` deletes topics and queues on request.

The order of deletion keeps a store consistent at every step:

1. The log's oldest file, then the next; never the last, never one that is not on disk and dispatched, and none that a
   reader holds.
2. Then what refers to deleted records: queue files, extension files, index files, notes of damage and deleted topics.

Each removal of a log, queue or index file is synced before the next one. So a crash or a power loss leaves at most
units and keys without records, which reads skip and the next pass removes; never records without units, and never a
hole between two files. Deletion writes no note: the minimum of a queue follows from that of the log.
"""
