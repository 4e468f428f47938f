"""The verb groups for a running cluster: topic, group, message, offset, cluster."""
