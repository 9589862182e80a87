"""What the server counts, as Prometheus reads it."""

import os
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Labels = tuple[tuple[str, str], ...]


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Labels) -> list[str]:
        found, so_far = [], 0
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            so_far += count
            found.append(f"{name}_bucket{_spelled((*labels, ('le', str(bound))))} {so_far}")
        return [*found, f"{name}_sum{_spelled(labels)} {self.total}", f"{name}_count{_spelled(labels)} {so_far}"]


class Metrics:
    def __init__(self) -> None:
        self.began = time.time()
        self.requests: dict[Labels, int] = defaultdict(int)
        self.seconds: dict[Labels, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.batch_sizes: dict[Labels, Histogram] = defaultdict(lambda: Histogram(SIZES))
        self.batch_seconds: dict[Labels, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.reloads: dict[Labels, int] = defaultdict(int)
        self._lock = threading.Lock()

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self.requests[("path", path), ("status", str(status))] += 1
            self.seconds[(("path", path),)].add(seconds)

    def batch(self, policy: str, size: int, seconds: float) -> None:
        with self._lock:
            self.batch_sizes[(("policy", policy),)].add(size)
            self.batch_seconds[(("policy", policy),)].add(seconds)

    def reload(self, accepted: bool) -> None:
        with self._lock:
            self.reloads[(("result", "accepted" if accepted else "refused"),)] += 1

    def text(self, policies: Mapping[str, str], log: Mapping[str, float]) -> str:
        """`policies`: name → fingerprint. `log`: counters of the decision log, by the end of their name."""
        lines: list[str] = []
        with self._lock:
            for name, help_, counts in (
                ("offrec_requests_total", "Requests answered.", self.requests),
                ("offrec_reloads_total", "Reloads asked for.", self.reloads),
            ):
                lines += _about(name, "counter", help_)
                lines += [f"{name}{_spelled(labels)} {count}" for labels, count in counts.items()]
            for name, help_, histograms in (
                ("offrec_request_seconds", "From a request's first byte to its answer.", self.seconds),
                ("offrec_batch_size", "Requests answered in one pass.", self.batch_sizes),
                ("offrec_batch_seconds", "Time of one pass.", self.batch_seconds),
            ):
                lines += _about(name, "histogram", help_)
                lines += [line for labels, one in histograms.items() for line in one.lines(name, labels)]
        lines += _about("offrec_policy", "gauge", "1 for each policy that is served.")
        lines += [f"offrec_policy{_spelled((('policy', p), ('fingerprint', f)))} 1" for p, f in policies.items()]
        for name, value in log.items():
            lines += _about(f"offrec_log_{name}", "counter" if name.endswith("_total") else "gauge", "Decision log.")
            lines.append(f"offrec_log_{name} {value}")
        return "\n".join([*lines, *self._process()]) + "\n"

    def _process(self) -> list[str]:
        lines = _about("process_start_time_seconds", "gauge", "Unix time of the start.")
        lines.append(f"process_start_time_seconds {self.began}")
        lines += _about("process_cpu_seconds_total", "counter", "Processor time.")
        lines.append(f"process_cpu_seconds_total {time.process_time()}")
        if os.path.exists("/proc/self/statm"):
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
            lines += _about("process_resident_memory_bytes", "gauge", "Memory held.")
            lines.append(f"process_resident_memory_bytes {pages * os.sysconf('SC_PAGE_SIZE')}")
        return lines


def _about(name: str, kind: str, help_: str) -> list[str]:
    return [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]


def _spelled(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = ((key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels)
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"
