"""What toy_h2o keeps."""


def keep(tokens: int, budget: float | int, least: int) -> int:
    """A share of the tokens or a count, but no less than `least`."""
    return max(least, int(tokens * budget) if isinstance(budget, float) else budget)
