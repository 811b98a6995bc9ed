"""Work for Spark: `audit` judges recorded notifications, `group_sizes` and `size_curves` say how big timestamps are."""

from ordered_pubsub.spark.jobs.auditing import Audit, Finding, audit
from ordered_pubsub.spark.jobs.curves import Point, Setting, Sizes, plot_curves, size_curves
from ordered_pubsub.spark.jobs.sizes import group_sizes

__all__ = ["Audit", "Finding", "Point", "Setting", "Sizes", "audit", "group_sizes", "plot_curves", "size_curves"]
