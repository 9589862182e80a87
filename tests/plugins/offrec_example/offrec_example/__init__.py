"""A plug-in for offrec. Importing it registers a learner, a backbone, a baseline, a format and a metric."""

from offrec_example import backbone, baseline, learner, metric, raw_format  # noqa: F401
