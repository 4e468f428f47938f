"""Batches of rows from other processes, each stored completely and once, even if its writer is killed.

    commit    stages rows in files without owning the store; appends a whole batch and marks it as stored
    journal   the files that say which batch is being appended, where the last batches lie, and which are stored
    recovery  completes or rolls back a batch whose writer was killed

A commit has these steps: write a journal that names the batch as pending, append, sync, write the mark of the batch,
write a journal without it. If the next open finds a pending batch without a mark, it truncates the log where the batch
began. A read-only view ends there.
"""

from penstock.store.sink.journal import pending_start, whole_batches

__all__ = ["pending_start", "whole_batches"]
