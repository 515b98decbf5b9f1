"""The charts: one file, one function, one figure."""
