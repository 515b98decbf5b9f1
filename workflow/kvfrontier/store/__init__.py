"""Rows on disk: one Parquet file a cell, folded into parts, read into DuckDB."""
