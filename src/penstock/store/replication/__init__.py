"""Replication as the store sees it: a master waits for acks of slaves, a slave appends the bytes of its master."""
