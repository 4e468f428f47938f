"""Deleting what is old, and refusing puts when the disk is full.

One thread (`cleaner`) deletes, another (`watcher`) looks at the disk, so that slow deletion never delays the look. What
may go and why is decided in `policy`, which touches nothing; `explain` shows the same decisions before they are acted
on. `topics` deletes topics and queues when somebody asks for it.

The order is the rule that keeps a store sound whatever happens between two steps:

1. The log first, its oldest file, then the next; never the last; nothing that is not on disk and dispatched, and
   nothing that a reader holds.
2. Then, for what the log on disk no longer has: queue files, extension files, index files, known damage, deleted
   topics.

Each removal of a log, queue or index file is synced before the next one. So a crash or a power cut leaves at most units
and keys without records, which reads pass over and the next pass removes; never records without units, and never a
hole between two files. Nothing is written to make a deletion known: a queue's minimum follows from the log's.
"""
