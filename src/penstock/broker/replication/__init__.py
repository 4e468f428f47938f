"""Replication: a master's log on other machines, by RocketMQ's HA protocol.

| Module | What it does |
|---|---|
| `wire` | the two kinds of frames, which both sides share |
| `slave_connection`, `listener` | a master's side: one slave, and all of them |
| `frames`, `catch_up` | a part of the log as frames; sending it from a thread to a slave that is far behind |
| `follower`, `incoming` | a slave's side: connects; takes the log over in a thread, and tells how far it is |
| `master_link` | a slave's ordinary requests to its master, signed where that wants it |
| `same_log` | whether a slave's log is a beginning of its master's, before anything is added to it |
| `copying` | a master's topics, groups and offsets, every ten seconds |
| `status` | who follows whom, and how far behind |
| `replication` | the part of all this that a broker's role needs |
"""
