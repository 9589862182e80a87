"""Metrics of several worker processes: each writes its own to shared memory, and any of them can show all."""

import mmap
import struct
import zlib

REGION_BYTES = 1 << 20  # per worker; pages that are never written need no memory
HEADER = struct.Struct("<II")  # length and CRC-32 of the text
READ_ATTEMPTS = 100


class SharedMetrics:
    """Memory for the metrics of all workers. Create it before the workers are forked.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.memory = mmap.mmap(-1, workers * REGION_BYTES)

    def write(self, worker: int, text: bytes) -> None:
        """Publish the metrics of a worker.

        Args:
            worker: The number of the worker.
            text: Its metrics in the Prometheus text format, without a worker label.
        """
        data = add_label(text.decode(), "worker", str(worker)).encode()[: REGION_BYTES - HEADER.size]
        start = worker * REGION_BYTES
        self.memory[start + HEADER.size : start + HEADER.size + len(data)] = data
        HEADER.pack_into(self.memory, start, len(data), zlib.crc32(data))

    def read(self) -> bytes:
        """Return the metrics of all workers in the Prometheus text format, with a worker label."""
        return merge_metrics([self._read_worker(worker).decode() for worker in range(self.workers)]).encode()

    def _read_worker(self, worker: int) -> bytes:
        start = worker * REGION_BYTES
        for _ in range(READ_ATTEMPTS):  # the worker may be writing
            length, checksum = HEADER.unpack_from(self.memory, start)
            data = self.memory[start + HEADER.size : start + HEADER.size + length]
            if zlib.crc32(data) == checksum:
                return data
        return b""  # the worker was killed while it was writing


def add_label(text: str, name: str, value: str) -> str:
    """Add a label to every sample.

    Args:
        text: Metrics in the Prometheus text format.
        name: The name of the label.
        value: Its value, without characters that need escaping.

    Returns:
        The metrics with the label.

    Example:
        >>> add_label("offrec_connections 3.0", "worker", "1")
        'offrec_connections{worker="1"} 3.0'
    """
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            metric, brace, labels = line.partition("{")
            if brace:
                line = f'{metric}{{{name}="{value}",{labels}'
            else:
                metric, _, number = line.partition(" ")
                line = f'{metric}{{{name}="{value}"}} {number}'
        lines.append(line)
    return "\n".join(lines)


def merge_metrics(texts: list[str]) -> str:
    """Merge metrics so that each metric is described once and its samples follow each other.

    Args:
        texts: Metrics in the Prometheus text format.

    Returns:
        All samples, in the same format.
    """
    descriptions: dict[str, str] = {}  # "# HELP …" → "# TYPE …"
    samples: dict[str, list[str]] = {}
    for text in texts:
        metric = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                metric = line
                samples.setdefault(metric, [])
            elif line.startswith("# TYPE "):
                descriptions[metric] = line
            else:
                samples[metric].append(line)
    return "".join(
        f"{line}\n" for metric, values in samples.items() for line in (metric, descriptions[metric], *values)
    )
