"""The groups of verbs that talk to a running cluster: topic, group, message, offset, cluster."""
