"""The bodies of requests and replies, one struct per shape, grouped by concern. `base` defines how they are parsed."""
