"""Automatic failover: the brokers of one name elect their master through a consensus engine (etcd, ZooKeeper).

| Module | Contents |
|---|---|
| `consensus_engine` | what the engine holds, as values; the interface to an engine |
| `sync_set` | which replicas must have a message before it is acknowledged; pure |
| `election_rules` | what a replica does next, given what the engine holds; pure |
| `operator_orders` | what an operator changes; pure |
| `election_loop` | the rounds: read, decide, play the part, attempt a transaction |
| `etcd`, `zookeeper` | the engines; `zookeeper` needs the extra of that name |
| `lease` | the thread that renews |
| `configuration`, `membership_file` | the settings; a replica's own file |
| `role_change_commands` | onMaster and onSlave |
| `status` | what a replica reports about elections; pure |
| `role_switch`, `failover_threads` | the broker process that a keeper directs; its threads |

Safety rests on no clock. Only a member of the sync set may be elected, a send is acknowledged when every member of the
set has its bytes, and a replica that knows a newer epoch takes nothing from an older one. The lease detects failures.
"""
