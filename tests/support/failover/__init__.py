"""What judges failover: a history of what clients and replicas saw, checkers of it, a cluster, a load, and nemeses.

history     what was recorded, as values that can be saved and read again
checkers    the rules that a history must keep; pure
model       a cluster as a small model, whose rules can be broken one by one; for the tests of the checkers
plan        which accidents happen when, from a seed; pure
network     machines as network namespaces, whose links can be cut one way and slowed
clocks      the wall clock of one process, which can be set
cluster     brokers, name servers and etcd as processes
strikes     carries out a plan on a cluster
load        producers and consumers that note every answer
java_load   the same with Apache RocketMQ's Java client
fire        one run: load, accidents, and the history of it
evidence    what replicas and etcd hold at the end
"""
