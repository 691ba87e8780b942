"""Pure numbers with intervals: what is measured, and how far it can be trusted."""

from referee.metrics.calibration import Reliability, brier, ece, nll, probability, reliability
from referee.metrics.intervals import Estimate, bootstrap
from referee.metrics.ranking import Curve, auroc, average_precision, pr_curve, roc_curve, spearman, voc
from referee.metrics.rates import Rate, wilson

__all__ = [
    "Curve",
    "Estimate",
    "Rate",
    "Reliability",
    "auroc",
    "average_precision",
    "bootstrap",
    "brier",
    "ece",
    "nll",
    "pr_curve",
    "probability",
    "reliability",
    "roc_curve",
    "spearman",
    "voc",
    "wilson",
]
