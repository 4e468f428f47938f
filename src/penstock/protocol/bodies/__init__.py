"""The JSON bodies of requests and replies: one struct per shape, grouped by concern. `base` parses and encodes them."""
