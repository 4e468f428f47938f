"""Read-only access to a store, also while a broker writes to it: full views, tails for polling, and range views."""
