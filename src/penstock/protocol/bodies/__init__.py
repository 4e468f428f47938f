"""The bodies of requests and replies, one struct for each shape, by concern. See `base` for how they are read."""
