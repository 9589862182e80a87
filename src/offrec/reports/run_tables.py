"""Tables that describe the runs: logs, settings, machines, trials and failures."""

from datetime import datetime

from offrec.reports import formatting, labels
from offrec.reports.reading import StudyResults
from offrec.reports.statistics import summarise
from offrec.reports.tables import Cell, Rank, Row, Table, metric_cell

MAIN_OPTIONS = ("gamma", "select", "network.width", "training.epochs", "training.batch_size", "training.learning_rate")
SHOWN_TRIALS = 10
RANKS: dict[int, Rank] = {0: "best", 1: "second"}


def failures_table(results: StudyResults) -> list[Table]:
    """List the failed runs with their reasons."""
    rows = [Row(one.run.name, [Cell(one.reason), Cell(str(one.study.folder))]) for one in results.failures]
    return [Table("failed", "Failed runs", "", [], ["reason", "study"], [("", rows)])] if rows else []


def logs_table(results: StudyResults) -> Table:
    """List the datasets with their protocol."""
    heads = ["fingerprint", "sessions", "events", "items", "split", "first events", "unseen items", "scored", "filters"]
    rows = []
    for dataset in (dataset for datasets in results.logs.values() for dataset in datasets):
        protocol = dataset.protocol
        parts = ":".join(f"{part:g}" for part in protocol["split_parts"])
        cells = [
            dataset.fingerprint,
            *(f"{dataset.counts[name]:,}" for name in ("sessions", "events", "items")),
            f"{protocol['split']} {parts}, seed {protocol['split_seed']}",
            "scored" if protocol["score_first"] else "not scored",
            "kept" if protocol["unseen"] == "keep" else "dropped",
            f"last {protocol['score_last']}" if protocol["score_last"] else "all events",
            ", ".join(protocol["filters"]) or "none",
        ]
        rows.append(Row(dataset.name, [Cell(text) for text in cells]))
    note = (
        "Each scored item is ranked among all items of the catalogue. Items of the history can be recommended again. "
        "Ties count against the policy."
    )
    return Table("logs", "Logs and protocol", note, [], heads, [("", rows)])


def settings_tables(results: StudyResults) -> list[Table]:
    """List the options of each learner: its own, except varied ones, and the main ones of training."""
    rows: dict[tuple[str, str], set[str]] = {}
    for policy in (*results.compared, *results.swept):
        group = policy.group
        if group.kind != "learner" or group.compare_with:
            continue
        options = {key: value for key, value in group.options.items() if key not in group.varied}
        own = [key for key in options if key.startswith("algorithm.") and key != "algorithm.name"]
        texts = [f"{key.removeprefix('algorithm.')} {options[key]}" for key in [*own, *MAIN_OPTIONS] if key in options]
        label = labels.group_label(group)
        rows.setdefault((labels.backbone_label(policy), label), set()).add(", ".join(texts))
    sections: dict[str, list[Row]] = {}
    for (backbone, learner), variants in rows.items():
        sections.setdefault(backbone, []).append(Row(learner, [Cell(" · ".join(sorted(variants)))]))
    note = "study.json contains every option of every run. Batch size None: chosen by the size of the log."
    return [Table("settings", "Settings", note, [], ["options"], list(sections.items()))] if sections else []


def machines_table(results: StudyResults) -> Table:
    """List the different combinations of versions and machines."""
    heads = ["offrec", "commit", "torch", "python", "processor", "device"]
    finished: dict[tuple[str, ...], list[str]] = {}
    for result in results.results():
        machine = result.facts["machine"]
        key = tuple(str(machine.get(head) or "unknown") for head in heads)
        finished.setdefault(key, []).append(result.facts["finished_at"])
    rows = []
    for key, times in finished.items():
        period = Cell(f"{_minute(min(times))} to {_minute(max(times))}")
        rows.append(Row(f"{len(times)} runs", [*(Cell(text) for text in key), period]))
    has_changes = any(key[1].endswith("+") for key in finished)
    note = "Commit with +: the source had uncommitted changes." if has_changes else ""
    return Table("machines", "Versions and machines", note, [], [*heads, "finished (UTC)"], [("", rows)])


def _minute(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M")


def trial_tables(results: StudyResults) -> list[Table]:
    """List the best trials of each search by their validation metric."""
    tables = []
    for study in results.studies:
        trials = [policy for policy in results.trials if policy.study is study and policy.results]
        if not trials:
            continue
        metric = str(study.request["objective"])
        trials.sort(key=lambda trial: -(trial.mean("all", metric, "validation") or 0.0))
        options = list(dict.fromkeys(key for trial in trials for key in trial.group.varied))
        rows = []
        for index, trial in enumerate(trials[:SHOWN_TRIALS]):
            summary = summarise(list(trial.values("all", metric, "validation").values()))
            settings = [Cell(formatting.format_setting(trial.group.varied.get(key))) for key in options]
            rows.append(
                Row(f"trial {trial.group.trial}", [metric_cell(summary, None, RANKS.get(index, "")), *settings])
            )
        learner, name = labels.learner_label(study.groups[0]), study.datasets[0].name
        title = f"{learner} on {name}: the best {len(rows)} of {len(trials)} trials"
        note = "Selected by validation metrics; test sessions were not evaluated."
        heads = [f"validation {metric}", *options]
        tables.append(Table(f"trials-{study.folder.name}", title, note, [], heads, [("", rows)]))
    return tables
