"""Batches of rows from outside, each stored whole and once, whatever is killed when.

    staged    rows that wait: files under `penstock/sink/staged/`, written by anybody, without owning the store
    commit    what their writer's driver calls: owns the store, appends a whole batch, marks it as stored
    marks     which batches are stored: one small file for each query or named write
    journal   what is being appended now, and where the last batches lie: `penstock/sink/journal.json`
    finish    what a start does about a batch that was being appended when its writer was killed
    topics    how many queues a topic has, and making those that are new

The order is: journal with the batch as pending, append, sync, mark, journal without it. Whoever opens the store next
and finds a pending batch without its mark cuts the log where the batch began; a read-only view ends there.
"""

from penstock.store.sink.journal import pending_start, whole_batches

__all__ = ["pending_start", "whole_batches"]
