"""Replication, the store's part: a master waits for acks of slaves, a slave appends the bytes of its master's log."""
