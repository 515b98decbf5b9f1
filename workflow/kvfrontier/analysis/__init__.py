"""Frontiers, statistics and the choice, over the store."""
