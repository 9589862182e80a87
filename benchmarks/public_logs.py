"""Compare the eleven learners and the baselines on public logs, tuned for imitation.

    python benchmarks/public_logs.py grid DATASET… --out FOLDER
    python -m offrec.studies FOLDER/grid --jobs 14 --concurrent-seeds 1
    python benchmarks/public_logs.py chosen DATASET… --out FOLDER [--columns strong-gru=5,strong-sasrec=3,paper-cfn=5]
    python -m offrec.studies FOLDER/strong-sasrec-LOG …
    python benchmarks/public_logs.py table --out FOLDER --json FILE [--seeds 5]
    python benchmarks/public_logs.py seen DATASET… --out FOLDER --json FILE
    python benchmarks/public_logs.py rewards --out FOLDER --json FILE --picture FILE.svg

`grid` plans a study in which each learner's α, β, δ or weight takes three values, with GRU. `chosen` takes the value
with the best validation NDCG@10 and plans studies with more seeds and other backbones; results of the grid are reused.
`table` writes all results as JSON and Markdown. `seen` splits the metrics by whether the item had already occurred in
the session. `rewards` reads the sweeps FOLDER/cart*. Run the studies on the machine with the GPU.

The presets are tuned for reward; this table is about imitation, as in the paper. Therefore the checkpoint with the best
NDCG@10 is selected, the learning rate falls when NDCG@10 stops improving, and RE and PG start from π̂_b.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import public_rewards
import public_seen
from evidence import write_results
from offrec.algorithms import LEARNERS
from offrec.studies import design
from offrec.studies.arguments import parse_seeds
from offrec.studies.folder import read_study
from offrec.studies.stored_results import read_array, read_result, write_result
from offrec.studies.study import RunGroup, Study

IMITATE = ("training.schedule=plateau", "training.epochs=50", "training.precision=bf16", "diagnostics=some")
OWN = {
    "re": (
        "algorithm.start=supervised",
        "algorithm.critic_start=supervised",
        "critic.repeat=instead",
        "critic.dropout=0",
    ),
    "pg": ("algorithm.start=supervised",),
    "sl+pg": ("algorithm.start=supervised",),
}
GRID = {
    "dqn": ("algorithm.delta", ("0.001", "0.01", "0.03")),
    "sl+dqn": ("algorithm.weight", ("0.1", "0.3", "1")),
    "sl+pg": ("algorithm.weight", ("0.1", "0.3", "1")),
    "sdac": ("algorithm.alpha", ("0.02", "0.1", "0.5")),
    "sc": ("algorithm.delta", ("0.0001", "0.001", "0.01")),
    "sr": ("algorithm.beta", ("1", "10", "100")),
    "pc": ("algorithm.beta", ("0.3", "1", "10")),
    "dc": ("algorithm.alpha", ("0.5", "2", "8")),
    "re": ("algorithm.alpha", ("0.1", "0.5", "2")),
}
FIGURE = "NDCG@10"
FIRST = "strong-gru"  # the column of the grid
COLUMNS = "strong × gru", "strong × sasrec", "paper × cfn"
STUDIES = tuple(column.replace(" × ", "-") for column in COLUMNS)
KINDS = ("grid", *(f"{name}-*" for name in STUDIES))  # folders of the studies, as patterns
Row = dict[str, Any]


def levels() -> list[str]:
    """Return every learner at every value of its grid."""
    result = []
    for name in LEARNERS:
        own = OWN.get(name, ())
        key, values = GRID.get(name, ("", ("",)))
        settings = [
            ",".join([f"algorithm.name={name}", *([f"{key}={value}"] if key else []), *own]) for value in values
        ]
        result += [] if name == "dc" else settings
    return result


def grid(datasets: Sequence[Path], folder: Path) -> Study:
    key, values = GRID["dc"]
    vary = [f"{key}={','.join(values)}"]
    return design.plan_sweep(
        datasets,
        folder / "grid",
        algorithm="dc",
        vary=vary,
        levels=levels(),
        seeds="1",
        select="ndcg",
        settings=IMITATE,
    )


def best(study: Study) -> dict[str, dict[str, RunGroup]]:
    """Return log → learner → the policy with the best validation metric."""
    result: dict[str, dict[str, tuple[float, RunGroup]]] = {}
    for run in study.runs:
        if study.is_done(run):
            group, figures = study.group(run), read(study, run.name)["validation"]["all"]
            of_log = result.setdefault(group.log, {})
            if group.policy not in of_log or figures[FIGURE] > of_log[group.policy][0]:
                of_log[group.policy] = figures[FIGURE], group
    return {log: {name: group for name, (_, group) in mine.items()} for log, mine in result.items()}


def chosen(datasets: Sequence[Path], folder: Path, columns: str) -> list[Study]:
    """Plan the studies of the chosen policies; `columns` is PRESET-BACKBONE=SEEDS, separated by commas."""
    lacking = next((column for column in columns.split(",") if not column.partition("=")[2]), None)
    if lacking is not None:
        raise SystemExit(f"--columns: {lacking or 'a column'} lacks its number of seeds; give it, as in {FIRST}=5.")
    made, tried = [], read_study(folder / "grid")
    policies = best(tried)
    for dataset in datasets:
        log = dataset.resolve().name
        values = [f"{name}:{setting(group)}" for name, group in policies[log].items() if name in GRID]
        strong = [*IMITATE, *values, *(f"{name}:{pair}" for name, pairs in OWN.items() for pair in pairs)]
        for name, _, seeds in (column.partition("=") for column in columns.split(",")):
            preset, _, backbone = name.partition("-")
            study = design.plan_comparison(
                [dataset],
                folder / f"{name}-{log}",
                backbones=backbone,
                baselines="all" if name == FIRST else "none",
                seeds=seeds,
                preset=preset,
                select="ndcg",
                settings=strong if preset == "strong" else values,
            )
            made.append(design.create_or_extend(study))
            if name == FIRST:
                reuse_runs(tried, made[-1], policies[log])
    return made


def setting(group: RunGroup) -> str:
    key, _ = GRID[group.policy]
    return f"{key}={group.options[key]:g}"


def reuse_runs(tried: Study, study: Study, policies: dict[str, RunGroup]) -> None:
    """Reuse the grid's runs of the chosen policies."""
    for run in study.runs:
        group = study.group(run)
        source = policies.get(group.policy) if group.kind == "learner" else None
        before = next((one for one in tried.runs if source and (one.group, one.seed) == (source.name, run.seed)), None)
        if source is None or before is None or not tried.done(before) or study.is_done(run):
            continue
        if group.options != source.options:
            raise SystemExit(f"{group.name} was asked with other options than {source.name}.")
        facts = read_result(tried, before)
        arrays = {kind: read_array(tried, before, facts, kind) for kind in ("ranks", "events")}
        write_result(study, run, facts, arrays)


def read(study: Study, name: str) -> Row:
    result: Row = json.loads(study.path("results", f"{name}.json").read_text())
    return result


def rows(folder: Path, seeds: Sequence[int] = (0,)) -> list[Row]:
    """Return one row per run of these studies and seeds."""
    result: list[Row] = []
    for path in study_folders(folder, *KINDS):
        study = read_study(path)
        for run in (run for run in study.runs if run.seed in seeds and study.is_done(run)):
            group, facts = study.group(run), read(study, run.name)
            for split in {"validation", "test"} & set(facts):
                if len(facts[split]) == 2:  # with a single behaviour, keep only "all"
                    facts[split] = {"all": facts[split]["all"]}
            key = GRID.get(group.policy, ("",))[0]
            keep = {
                name: facts[name]
                for name in ("validation", "test", "seconds", "selected_epoch", "peak_memory")
                if name in facts
            }
            row = {"study": path.name, "log": group.log, "policy": group.policy, "seed": run.seed}
            row |= {"backbone": group.backbone, "preset": group.preset, "value": group.options.get(key), **keep}
            made = {name: facts["machine"][name] for name in ("commit", "device")}
            result.append(row | {"epochs": len(facts.get("learning_curve", [])), **made})
    return result


def round_metrics(tree: Any) -> Any:
    """Round the metrics to six digits."""
    if isinstance(tree, dict):
        return {name: round_metrics(value) for name, value in tree.items()}
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def table(result: Sequence[Row]) -> str:
    """Format one row per policy and log, sorted by the test metric with GRU, seed 0; then the grid on validation."""
    parts = []
    for log in dict.fromkeys(row["log"] for row in result):
        mine = [row for row in result if row["log"] == log and row["study"] != "grid" and row["seed"] == 0]
        kinds = [name for name in mine[0]["test"] if name != "all"]
        parts += [f"### {log}\n", *_policies(mine, kinds if len(kinds) > 1 else ["all"]), ""]
    return "\n".join([*parts, "### The grid\n", *_grid(result)])


def _policies(mine: Sequence[Row], kinds: Sequence[str]) -> list[str]:
    cells: dict[str, dict[str, Row]] = {}
    for row in mine:
        column = f"{row['preset']} × {row['backbone']}" if row["backbone"] else COLUMNS[0]
        cells.setdefault(row["policy"], {})[column] = row
    columns = [column for column in COLUMNS if any(column in of for of in cells.values())]
    whole = {name: of[COLUMNS[0]]["test"]["all"][FIGURE] for name, of in cells.items()}
    of_kinds = f", {' · '.join(kinds)}" if len(kinds) > 1 else ""
    lines = [f"HR@5 / {FIGURE}{of_kinds}\n"]
    lines += ["| policy | value | " + " | ".join([columns[0], "of SL", *columns[1:]]) + " |"]
    lines += ["|" + "---|" * (len(columns) + 3)]
    for name in sorted(cells, key=lambda name: -whole[name]):
        of = cells[name]
        first = of[COLUMNS[0]]
        value = f"{GRID[name][0].partition('.')[2]} {first['value']:g}" if name in GRID else ""
        label = name.upper() if first["backbone"] else f"*{name}*"
        shown = [figures(of.get(column), kinds) for column in columns]
        shown.insert(1, f"{whole[name] / whole['sl']:.1%}")
        lines.append(f"| {label} | {value} | {' | '.join(shown)} |")
    return lines


def _grid(result: Sequence[Row]) -> list[str]:
    logs = list(dict.fromkeys(row["log"] for row in result))
    lines = [f"{FIGURE} on validation.\n", "| learner | | " + " | ".join(logs) + " |", "|" + "---|" * (len(logs) + 2)]
    for name, (key, values) in GRID.items():
        cells = []
        for log in logs:
            tried = {row["value"]: row["validation"]["all"][FIGURE] for row in result
                     if (row["study"], row["log"], row["policy"]) == ("grid", log, name)}  # fmt: skip
            best = max(tried.values())
            shown = [f"{tried[float(value)]:.4f}" for value in values]
            cells.append(" · ".join(f"**{one}**" if one == f"{best:.4f}" else one for one in shown))
        lines.append(f"| {name.upper()} | {key.partition('.')[2]} {', '.join(values)} | {' | '.join(cells)} |")
    return lines


def figures(row: Row | None, kinds: Sequence[str]) -> str:
    if row is None:
        return "–"
    return " · ".join(f"{row['test'][kind]['HR@5']:.4f} / {row['test'][kind][FIGURE]:.4f}" for kind in kinds)


def write(path: Path | None, result: dict[str, list[Row]] | list[Row], studies: Sequence[Path]) -> None:
    if path is None:
        return
    if isinstance(result, list):
        write_results(path, [round_metrics(row) for row in result], {}, made_from=studies)
    else:
        content = {name: [round_metrics(row) for row in part] for name, part in result.items()}
        write_results(path, content, {}, made_from=studies)


def study_folders(folder: Path, *patterns: str) -> list[Path]:
    return sorted(path.parent for pattern in patterns for path in folder.glob(f"{pattern}/study.json"))


def rewards(arguments: argparse.Namespace) -> None:
    result = public_rewards.read(arguments.out)
    print(public_rewards.table(result))
    content = {"runs": public_rewards.runs(result), "steps": public_rewards.steps(result)}
    write(arguments.json, content, study_folders(arguments.out, "cart*"))
    if arguments.picture:
        arguments.picture.write_text(public_rewards.picture(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("grid", "chosen", "table", "seen", "rewards"))
    parser.add_argument("datasets", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--columns", default="strong-gru=1,strong-sasrec=1,paper-cfn=1", help="PRESET-BACKBONE=SEEDS,…")
    parser.add_argument("--seeds", default="1", help="number of seeds in the table")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "table":
        result = rows(arguments.out, parse_seeds(arguments.seeds))
        print(table(result))
        write(arguments.json, result, study_folders(arguments.out, *KINDS))
    elif arguments.what == "seen":
        seen = public_seen.rows(arguments.datasets, arguments.out, STUDIES)
        write(arguments.json, seen, study_folders(arguments.out, *KINDS[1:]))
    elif arguments.what == "rewards":
        rewards(arguments)
    else:
        several = arguments.what == "chosen"
        made = chosen(arguments.datasets, arguments.out, arguments.columns) if several else []
        for study in made or [design.create_or_extend(grid(arguments.datasets, arguments.out))]:
            print(f"{study.folder}: {len(study.runs)} runs planned")


if __name__ == "__main__":
    main()
