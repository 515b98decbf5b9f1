"""Student's t quantiles for confidence intervals, exact, without scipy.

Hill's finite series gives the distribution function for integer degrees of freedom; bisection inverts it.
"""

from __future__ import annotations

import math

NORMAL_975 = 1.959963984540054
TABULATED = 200  # beyond this the expansion in 1/df that `database` uses is right to 10 digits


def t_distribution(t: float, df: int) -> float:
    """P(T <= t) for Student's t with `df` degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(df))
    cosine = math.cos(theta)
    if df % 2:
        term, total = cosine, cosine if df > 1 else 0.0
        for k in range(3, df - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        two_sided = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term = total = 1.0
        for k in range(2, df - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        two_sided = math.sin(theta) * total
    return 0.5 + two_sided / 2


def t_quantile(df: int, probability: float = 0.975) -> float:
    """The t with P(T <= t) = probability, probability in (0.5, 1)."""
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_distribution(middle, df) < probability else (low, middle)
    return (low + high) / 2


def t_table() -> list[float]:
    """The 97.5 % quantiles for 1 to TABULATED degrees of freedom."""
    return [t_quantile(df) for df in range(1, TABULATED + 1)]
