"""Retention: deletes old files, and refuses puts when the disk is full.

`cleaner` has two threads: one deletes, one watches the disk, so that slow deletion never delays the measurement.
`policy` decides which log files may be deleted and why, without side effects; `explain` shows its decisions in advance.
`derived` cleans queues and index; `topics` deletes topics and queues on request.

The order of deletion keeps a store consistent at every step:

1. The log's files, oldest first. The last file always stays. So does a file that is not completely on disk and
   dispatched, or that a reader holds.
2. Then files and notes that refer to deleted records: queue files, extension files, index files, and the lists of
   damaged ranges and of deleted topics.

Each removal of a log, queue or index file is synced before the next one. So a crash or a power loss leaves at most
units and keys without records; reads skip these, and the next pass removes them. It never leaves records without units,
or a hole between two files. Deletion itself writes no note: a queue's minimum offset follows from the log's.
"""
