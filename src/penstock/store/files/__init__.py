"""The files of a store: where they are, how they are mapped, locked, allocated and replaced. Knows no messages."""
