"""The tables of the pages: for each block the section of the ledger, its rows and its columns."""

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], Any]]


def text(value: Any) -> str:
    """Format a cell: numbers with three digits, nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 20 else f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"


def get(key: str) -> Callable[[Row], Any]:
    """Return a cell that shows a field."""
    return lambda row: row.get(key)


def ratio(above: str, below: str) -> Callable[[Row], Any]:
    """Return a cell that divides two fields."""
    return lambda row: row[above] / row[below] if row.get(above) and row.get(below) else None


def pair(one: str, other: str, unit: str = "") -> Callable[[Row], Any]:
    """Return a cell that shows two fields."""
    return lambda row: f"{text(row[one])} · {text(row[other])}{unit}"


def megabytes(key: str) -> Callable[[Row], Any]:
    """Return a cell that shows bytes as MB."""
    return lambda row: row[key] / 1e6 if row.get(key) is not None else None


def everything(payload: Any) -> list[Row]:
    return list(payload)


def where(**values: Any) -> Callable[[Any], list[Row]]:
    """Return the rows of a section that have these values."""
    return lambda payload: [
        row for row in _rows(payload) if all(row.get(key) == value for key, value in values.items())
    ]


def _rows(payload: Any) -> list[Row]:
    return list(payload["rows"] if isinstance(payload, dict) else payload)


def history_of(start: str) -> Callable[[Any], list[Row]]:
    return lambda payload: [row for row in payload if row["what"].startswith(start)]


def _error(what: str) -> Callable[[Any], list[Row]]:
    """Return one row per kind of operands and result, with the errors of both versions."""

    def rows(payload: Any) -> list[Row]:
        errors = {(row["operands"], row["by"]): row for row in payload if row["what"] == what}
        results = {
            "value": "value",
            "gradient of state": "gradient of the states",
            "gradient of table": "gradient of the table",
        }
        return [
            {"operands": kind, "result": title, **{by: f"{errors[kind, by][key]:.1e}" for by in ("kernels", "dense")}}
            for kind in dict.fromkeys(kind for kind, _ in errors)
            for key, title in results.items()
        ]

    return rows


def _updates(payload: Any) -> list[Row]:
    plain = {row["width"]: row["ms"] for row in payload if row["what"].startswith("plain")}
    return [row | {"plain_ms": plain[row["width"]]} for row in payload]


def _servers(payload: Any) -> list[Row]:
    """Return one row per number of items and connections, with the simple server's figures."""
    rows = {
        (row["items"], row["connections"], row["server"]): row for row in _rows(payload) if row["requests"] == "best"
    }
    return [row | {"plain": rows[n, c, "plain"]} for (n, c, server), row in rows.items() if server == "offrec"]


def _million(payload: Any) -> list[Row]:
    """Return the rows with their ratio to version 0.1, from ratios within one round."""
    ratios = {id(row): row.get("of_offrec", {"requests_per_second": 1.0}) for row in _rows(payload)}
    before = {
        row["connections"]: ratios[id(row)]["requests_per_second"]
        for row in _rows(payload)
        if row["server"] == "before"
    }
    return [
        row | {"times_before": ratios[id(row)]["requests_per_second"] / before[row["connections"]]}
        for row in _rows(payload)
        if row["connections"] in before
    ]


def _durable(server: str) -> Callable[[Any], list[Row]]:
    def rows(payload: Any) -> list[Row]:
        rows = {(row["connections"], row["server"]): row for row in _rows(payload) if row["requests"] == "best"}
        return [row | {"default": rows[n, "offrec"]} for (n, kind), row in rows.items() if kind == server]

    return rows


def _load(payload: Any) -> list[Row]:
    log = payload["log"]
    missing = f"{log['missing_lists']} and {log['missing_events']}"
    rows = [(f"{row['connections']} connections: lists/s", row["lists_per_second"]) for row in payload["rows"]] + [
        (f"{row['connections']} connections: p50 · p99, ms", pair("p50_ms", "p99_ms")(row)) for row in payload["rows"]
    ]
    rows += [
        ("errors before the kill", len(payload["errors"])),
        ("reloads, all successful", payload["reloads"]),
        ("answered lists and events", f"{payload['answered_lists']:,} and {payload['answered_events']:,}"),
        ("of these missing in the decision log after `kill -9`", missing),
        ("incomplete last lines", log["incomplete_lines"]),
        ("peak memory, MB, with two policies in memory during a reload", payload["peak_memory_mb"]),
        ("load average", max(row["waiting"] for row in payload["rows"])),
    ]
    return [{"what": what, "value": value} for what, value in rows]


def _actions(payload: Any) -> list[Row]:
    rows = {(row["items"], row["title"].startswith("offrec")): row for row in payload["actions"]}
    sizes = dict.fromkeys(items for items, _ in rows)
    return [{"items": n, "ours": rows.get((n, True), {}), "theirs": rows.get((n, False), {})} for n in sizes]


def _exports(payload: Any) -> list[Row]:
    return [
        {"backbone": row["backbone"], "swapped": row["agreement"]["swapped"]}
        | {"difference": f"{row['agreement']['largest_absolute_difference']:.1e}"}
        | {f"{size}_{by}": pair("p50_ms", "p99_ms", " ms")(row[size][by])
           for size in ("batch_1", "batch_64") for by in ("torch", "onnxruntime")}
        for row in payload["backbones"]
    ]  # fmt: skip


CATALOGUE: list[Column] = [
    ("operands", lambda row: {"tf32": "TF32"}.get(row["operands"], row["operands"])),
    ("items", get("items")),
    ("eager, ms", get("ours_ms")),
    ("graph, ms", get("ours_captured_ms")),
    ("floor, ms", get("floor_ms")),
    ("dense eager, ms", get("dense_ms")),
    ("dense graph, ms", lambda row: row.get("dense_captured_ms") if row.get("dense_ms", 99) < 10 else None),
    ("dense eager / eager", ratio("dense_ms", "ours_ms")),
    ("memory, MB", get("ours_mb")),
    ("dense, MB", get("dense_mb")),
]
HISTORY: list[Column] = [("what", get("what")), ("commit", get("commit")), ("ms", get("ms")), ("note", get("note"))]
EPOCHS: list[Column] = [
    ("learner", lambda row: row["learner"].upper()),
    ("seconds", get("seconds")),
    ("ms per update", lambda row: 1e3 * row["seconds"] / row["updates"]),
    ("first epoch, seconds", get("first_seconds")),
    ("peak allocated, MB", get("peak_mb")),
    ("expected, MB", get("planned_mb")),
]
STEPS: list[Column] = [("version", get("how")), ("seconds", get("seconds")), ("peak memory, GB", get("peak_gb"))]

SERVERS = {"before": "version 0.1", "offrec": "SL with 50 neighbours", "network": "SL without neighbours"}
TABLES: dict[str, tuple[str, Callable[[Any], list[Row]], list[Column]]] = {
    "cross-entropy": ("catalogue", where(what="cross-entropy"), CATALOGUE),
    "soft-value": ("catalogue", where(what="soft value"), CATALOGUE),
    "cross-entropy-history": ("history", history_of("cross-entropy"), HISTORY),
    "soft-value-history": ("history", history_of("soft value"), HISTORY),
    "update-history": ("history", history_of("DC update"), HISTORY),
    "plain-history": ("history", history_of("plain"), HISTORY),
    "errors": (
        "catalogue",
        _error("error"),
        [("operands", get("operands")), ("result", get("result")), ("offrec", get("kernels")), ("dense", get("dense"))],
    ),
    "update": (
        "update",
        _updates,
        [
            ("width", get("width")),
            ("version", get("what")),
            ("ms", get("ms")),
            ("plain / ms", ratio("plain_ms", "ms")),
            ("floor, ms", get("floor_ms")),
            ("memory, MB", get("peak_mb")),
        ],
    ),
    "profile": (
        "profile",
        everything,
        [("part", get("part")), ("kernels per update", get("kernels")), ("µs per update", get("microseconds"))],
    ),
    "memory": (
        "memory",
        everything,
        [
            ("concurrent runs", get("concurrent_runs")),
            ("reserved afterwards, MB", megabytes("reserved_after")),
            ("peak reserved, MB", megabytes("peak_reserved")),
            ("peak in use, MB", megabytes("peak_in_use")),
            ("reserved / in use", ratio("peak_reserved", "peak_in_use")),
            ("expected, MB", megabytes("expected")),
            ("expected / reserved", ratio("expected", "peak_reserved")),
        ],
    ),
    "epochs": ("epochs", everything, EPOCHS),
    "epochs-again": ("epochs-again", everything, EPOCHS),
    "epochs-sl-dc": ("epochs-sl-dc", everything, EPOCHS),
    "engine": (
        "engine",
        everything,
        [
            ("items", get("items")),
            ("neighbours per item", get("neighbours")),
            ("lists", get("lists")),
            ("requests per batch", get("batch")),
            ("ms per batch", get("batch_ms")),
            ("requests/s", get("requests_per_second")),
        ],
    ),
    "epoch": (
        "epoch",
        everything,
        [
            ("loop", get("loop")),
            ("seconds per epoch", get("median")),
            ("first epoch", get("first")),
            ("peak allocated, MB", get("peak_allocated_mb")),
        ],
    ),
    "updates-cpu": (
        "updates-cpu",
        lambda payload: payload["rows"],
        [
            ("version", get("version")),
            ("CPU time per update, ms", get("cpu_ms")),
            ("times faster than the first row", get("times_faster")),
        ],
    ),
    "start-up": (
        "start-up",
        _rows,
        [
            ("step", get("step")),
            ("seconds since the start", get("seconds")),
            ("fastest start", get("least_seconds")),
            ("CPU time", get("cpu_seconds")),
        ],
    ),
    "scale": (
        "scale",
        everything,
        [
            ("items", get("items")),
            ("settings", lambda row: ", ".join(f"`{one}`" for one in row["settings"]) or "defaults"),
            ("ms per update", get("ms_per_update")),
            ("allocated, MB", get("peak_allocated_mb")),
            ("reserved, MB", get("peak_reserved_mb")),
            ("expected, MB", get("planned_mb")),
        ],
    ),
    "catalogue-cpu": (
        "catalogue-cpu",
        everything,
        [
            ("function", get("task")),
            ("tiled, s", get("tiled_seconds")),
            ("dense, s", get("dense_seconds")),
            ("times faster", ratio("dense_seconds", "tiled_seconds")),
            ("tiled, GB", get("tiled_gb")),
            ("dense, GB", get("dense_gb")),
        ],
    ),
    "ranking": ("ranking", everything, STEPS),
    "prepare": ("prepare", everything, STEPS),
    "peers-sasrec": (
        "peers-sasrec",
        lambda payload: payload["sasrec"],
        [
            ("library", get("title")),
            ("ms per update", get("ms_per_update")),
            ("events per second", get("events_per_second")),
            ("epoch, extrapolated, s", get("epoch_seconds")),
            ("peak memory, GB", get("peak_gb")),
        ],
    ),
    "peers-actions": (
        "peers-actions",
        _actions,
        [
            ("items", get("items")),
            ("offrec, ms", lambda row: row["ours"].get("ms_per_update")),
            ("d3rlpy, ms", lambda row: row["theirs"].get("ms_per_update") or row["theirs"].get("failure")),
            ("offrec, GB", lambda row: row["ours"].get("peak_gb")),
            ("d3rlpy, GB", lambda row: row["theirs"].get("peak_gb")),
        ],
    ),
    "serving": (
        "serving",
        _servers,
        [
            ("items", get("items")),
            ("connections", get("connections")),
            ("requests/s", get("requests_per_second")),
            ("p50 · p99", pair("p50_ms", "p99_ms", " ms")),
            ("CPU time per request, ms", get("cpu_ms")),
            ("simple server: requests/s", lambda row: row["plain"]["requests_per_second"]),
            ("ratio", get("times_plain")),
            ("its CPU time, ms", lambda row: row["plain"]["cpu_ms"]),
            ("its peak, MB", lambda row: row["plain"]["peak_mb"]),
        ],
    ),
    "serving-sampled": (
        "serving",
        where(server="offrec", requests="sampled"),
        [
            ("items", get("items")),
            ("connections", get("connections")),
            ("sampled lists/s", get("requests_per_second")),
            ("CPU time per request, ms", get("cpu_ms")),
            ("memory at rest · peak", pair("resting_mb", "peak_mb", " MB")),
        ],
    ),
    "serving-million": (
        "serving-million",
        _million,
        [
            ("server", lambda row: SERVERS[row["server"]]),
            ("probabilities", lambda row: "no" if row["requests"] == "lists" else "yes"),
            ("connections", get("connections")),
            ("requests/s", get("requests_per_second")),
            ("times version 0.1", get("times_before")),
            ("p50, ms", get("p50_ms")),
            ("least CPU time per request, ms", get("least_cpu_ms")),
            ("requests per batch", get("mean_batch")),
        ],
    ),
    "serving-load": ("serving-load", _load, [("", get("what")), ("figure", get("value"))]),
    "serving-durable": (
        "serving-durable",
        _durable("durable"),
        [
            ("connections", get("connections")),
            ("with `--durable`: requests/s", get("requests_per_second")),
            ("p50 · p99", pair("p50_ms", "p99_ms", " ms")),
            ("default: requests/s", lambda row: row["default"]["requests_per_second"]),
            ("default: p50 · p99", lambda row: pair("p50_ms", "p99_ms", " ms")(row["default"])),
            ("ratio", lambda row: row["of_offrec"]["requests_per_second"]),
        ],
    ),
    "serving-before": (
        "serving-durable",
        _durable("before"),
        [
            ("connections", get("connections")),
            ("requests/s, now / before", lambda row: 1 / row["of_offrec"]["requests_per_second"]),
            ("least CPU time per request, now, ms", lambda row: row["default"]["least_cpu_ms"]),
            ("before, ms", get("least_cpu_ms")),
        ],
    ),
    "serving-memory": (
        "serving-memory",
        lambda payload: payload["servers"],
        [
            ("workers", get("workers")),
            ("at the start, MB", lambda row: " + ".join(map(str, row["start_mb"]))),
            ("after the reloads, MB", lambda row: " + ".join(map(str, row["reloaded_mb"]))),
        ],
    ),
    "serving-lists": (
        "serving-lists",
        lambda payload: payload["batches"],
        [
            ("requests in the batch", get("queries")),
            ("lists", lambda row: "sampled" if row["sample"] else "best items"),
            ("without the allow list, ms", get("ms_without")),
            ("with it, ms", get("ms_with")),
            ("ratio", get("ratio")),
        ],
    ),
    "export": (
        "export",
        _exports,
        [
            ("backbone", get("backbone")),
            ("largest difference of a score", get("difference")),
            ("different positions", get("swapped")),
            ("batch 1, torch: p50 · p99", get("batch_1_torch")),
            ("batch 1, ONNX Runtime", get("batch_1_onnxruntime")),
            ("batch 64, torch", get("batch_64_torch")),
            ("batch 64, ONNX Runtime", get("batch_64_onnxruntime")),
        ],
    ),
}
