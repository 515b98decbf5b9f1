"""Running cells: one row each, whatever happens."""
