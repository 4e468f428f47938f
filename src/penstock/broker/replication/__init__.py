"""Replication: copies a master's log to slaves, by RocketMQ's HA protocol.

| Module | Contents |
|---|---|
| `master` | the frames; a master's listener and its connection to each slave |
| `slave` | a slave's connection to its master: receives the log in a thread, reports how far it is |
| `config_sync` | a slave's other requests: are the logs the same, topics, groups, offsets |
| `replication` | what a broker's role needs of all this, and its status |
"""
