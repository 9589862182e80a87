"""Prometheus metrics of a server."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DECISION_LOG_HELP = {
    "lists": "Lists written to the decision log.",
    "events": "Events written to the decision log.",
    "flushed": "Lists and events flushed to the disk.",
    "lost": "Lists and events that could not be written or flushed.",
    "bytes": "Bytes written to the decision log.",
    "flushes": "Flushes to the disk.",
    "segments": "Files begun.",
}


class Metrics:
    """The metrics of one server, in a separate registry, because several servers can run in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("offrec_requests", "Requests answered.", ["path", "status"], registry=registry)
        self._request_seconds = Histogram(
            "offrec_request_seconds", "Duration of a request.", ["path"], buckets=SECONDS, registry=registry
        )
        self._batch_size = Histogram(
            "offrec_batch_size", "Requests in one batch.", ["policy"], buckets=BATCH_SIZES, registry=registry
        )
        self._batch_seconds = Histogram(
            "offrec_batch_seconds", "Computing time of one batch.", ["policy"], buckets=SECONDS, registry=registry
        )
        self._closed = Counter(
            "offrec_connections_closed", "Connections closed by a limit.", ["reason"], registry=registry
        )
        self._unknown_items = Counter(
            "offrec_unknown_items", "Item ids that the policy does not know, by place.", ["place"], registry=registry
        )
        self._unknown_requests = Counter(
            "offrec_unknown_requests", "Events with a request id that the server did not log.", registry=registry
        )
        self._unlisted_items = Counter(
            "offrec_unlisted_items", "Events with an item that the list of their request lacks.", registry=registry
        )
        self._reloads = Counter("offrec_reloads", "Reloads requested.", ["result"], registry=registry)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request and record its duration.

        Args:
            path: The path, or "other" for paths that do not exist.
            status: The HTTP status of the response; 0 if the connection ended before it.
            seconds: The duration.
        """
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def observe_batch(self, policy: str, size: int, seconds: float) -> None:
        """Record the size and the computing time of a batch.

        Args:
            policy: The name of the policy.
            size: The number of requests.
            seconds: The computing time.
        """
        self._batch_size.labels(policy).observe(size)
        self._batch_seconds.labels(policy).observe(seconds)

    def count_unknown_items(self, place: str, count: int) -> None:
        """Count item ids that no catalogue contains.

        Args:
            place: "history", "shown" or "event".
            count: The number of ids.
        """
        self._unknown_items.labels(place).inc(count)

    def count_unknown_requests(self, count: int) -> None:
        """Count events whose request id is not known."""
        self._unknown_requests.inc(count)

    def count_unlisted_items(self, count: int) -> None:
        """Count events whose item was not in the list of their request."""
        self._unlisted_items.inc(count)

    def count_reload(self, succeeded: bool) -> None:
        """Count a reload that succeeded or failed."""
        self._reloads.labels("succeeded" if succeeded else "failed").inc()

    def count_closed_connection(self, reason: str) -> None:
        """Count a connection that was closed by a limit: "limit" of connections, or "time"."""
        self._closed.labels(reason).inc()

    def report_connections(self, count: Callable[[], int]) -> None:
        """Report the number of open connections as offrec_connections.

        Args:
            count: Returns the number; called whenever the metrics are read.
        """
        Gauge("offrec_connections", "Open connections.", registry=self.registry).set_function(count)

    def report_policies(self, fingerprints: Callable[[], Mapping[str, str]]) -> None:
        """Report the served policies as offrec_policy_info.

        Args:
            fingerprints: Returns name → fingerprint; called whenever the metrics are read.
        """
        self.registry.register(_Policies(fingerprints))

    def report_passes(self, passes: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        """Report the passes over the catalogue that computed best lists as offrec_passes.

        Args:
            passes: Returns policy → kind → count; called whenever the metrics are read.
        """
        self.registry.register(_Passes(passes))

    def report_decision_log(self, counts: Callable[[], Mapping[str, int]], failing: Callable[[], bool]) -> None:
        """Report the counters of a decision log as offrec_decision_log_*.

        Args:
            counts: Returns name → count; called whenever the metrics are read.
            failing: Returns whether the log currently cannot be written.
        """
        self.registry.register(_DecisionLog(counts, failing))

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format, version 0.0.4."""
        return generate_latest(self.registry)


class _Policies(Collector):
    def __init__(self, fingerprints: Callable[[], Mapping[str, str]]) -> None:
        self.fingerprints = fingerprints

    def collect(self) -> Iterable[Metric]:
        family = InfoMetricFamily("offrec_policy", "Policies that are served.", labels=["policy"])
        for policy, fingerprint in self.fingerprints().items():
            family.add_metric([policy], {"fingerprint": fingerprint})
        yield family


class _Passes(Collector):
    def __init__(self, passes: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        self.passes = passes

    def collect(self) -> Iterable[Metric]:
        help_text = (
            "Passes over the catalogue for best lists, by precision; "
            "repeated: those that failed, because many items were near the k-th best."
        )
        family = CounterMetricFamily("offrec_passes", help_text, labels=["policy", "products"])
        for policy, counts in self.passes().items():
            for products, count in counts.items():
                family.add_metric([policy, products], count)
        yield family


class _DecisionLog(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]], failing: Callable[[], bool]) -> None:
        self.counts, self.failing = counts, failing

    def collect(self) -> Iterable[Metric]:
        for name, count in self.counts().items():
            yield CounterMetricFamily(f"offrec_decision_log_{name}", DECISION_LOG_HELP[name], value=count)
        help_text = "1 while the decision log cannot be written, else 0."
        yield GaugeMetricFamily("offrec_decision_log_failing", help_text, value=int(self.failing()))
