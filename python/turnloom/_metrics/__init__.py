"""What there is to know of a run: numbers that add up, and words for the log.

A `Ledger` enters each rollout into the tally of its agent, where numbers are cumulative. From there they go three ways:
a `Snapshot` is the picture of a moment, for people and programs; a trainer's queue gets the differences since it last
took some, as `METRICS` says; and what is watched reaches the log. `reports` is the snapshot in a line each minute,
and for Prometheus.
"""

from turnloom._metrics._catalogue import METRICS, PREFIX, SHAPES, Shape
from turnloom._metrics._ledger import UNKNOWN_AGENT, Ledger
from turnloom._metrics._prometheus import check_prometheus_port
from turnloom._metrics._queue import Metrics, MetricsQueue
from turnloom._metrics._report import reports
from turnloom._metrics._snapshot import AgentSnapshot, Distribution, Snapshot
from turnloom._metrics._tally import MAX_FIELDS, RECENT_ROLLOUTS
from turnloom._metrics._watch import DRIFT_WINDOW, ROLLOUTS_WITHOUT_IDS

__all__ = [
    "DRIFT_WINDOW",
    "MAX_FIELDS",
    "METRICS",
    "PREFIX",
    "RECENT_ROLLOUTS",
    "ROLLOUTS_WITHOUT_IDS",
    "SHAPES",
    "UNKNOWN_AGENT",
    "AgentSnapshot",
    "Distribution",
    "Ledger",
    "Metrics",
    "MetricsQueue",
    "Shape",
    "Snapshot",
    "check_prometheus_port",
    "reports",
]
