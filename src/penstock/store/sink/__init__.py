"""Batches of rows from other processes, each stored completely and once, even if its writer is killed.

    commit    stages rows in files without owning the store; appends a whole batch and marks it as stored
    journal   which batch is being appended, where the last ones lie, and which batches are stored
    recovery  completes or rolls back a batch whose writer was killed

A commit works in this order: journal with the batch as pending, append, sync, mark, journal without it. The next open
that sees a pending batch without a mark truncates the log where the batch began; a read-only view ends there.
"""

from penstock.store.sink.journal import pending_start, whole_batches

__all__ = ["pending_start", "whole_batches"]
