"""What there is to know of a run: numbers that add up, and words for the log.

Every number is counted here, cumulatively; a trainer's queue gets the differences since it last took some. Metrics
have two shapes: `{name: float}` for counts and maxima, `{name: (sum, count)}` for means and shares.
"""

from turnloom._metrics._ledger import DRIFT_WINDOW, ROLLOUTS_WITHOUT_IDS, Ledger
from turnloom._metrics._numbers import Metric, Metrics, MetricsQueue

__all__ = ["DRIFT_WINDOW", "ROLLOUTS_WITHOUT_IDS", "Ledger", "Metric", "Metrics", "MetricsQueue"]
