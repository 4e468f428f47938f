"""Read-only views of a store: reading its files without owning it, also while a broker writes to them."""
