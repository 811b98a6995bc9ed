"""Work for Spark about the order itself: `audit` judges recorded notifications."""

from ordered_pubsub.spark.jobs.auditing import Audit, Finding, audit

__all__ = ["Audit", "Finding", "audit"]
