"""Read-only access to a store, also while a broker writes to it: full views, a tail to poll, and light range views."""
