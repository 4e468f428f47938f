"""The store's part of replication: a master's puts wait for slaves' acks; a slave appends its master's log bytes."""
