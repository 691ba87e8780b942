"""Pure numbers with intervals: what is measured, and how far it can be trusted."""

from referee.metrics.rates import Rate, wilson

__all__ = ["Rate", "wilson"]
