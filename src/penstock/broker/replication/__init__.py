"""Replication: copies a master's log to slaves, by RocketMQ's HA protocol.

| Module | Contents |
|---|---|
| `master` | the frames; a master's listener, and its connection to each slave |
| `slave` | a slave's connection to its master: receives the log in a thread, and reports how much it has |
| `config_sync` | a slave's other requests: compares the logs, and copies topics, groups and offsets |
| `replication` | assembles these for a broker's role; the replication status |
"""
