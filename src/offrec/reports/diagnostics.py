"""Tables of diagnostics: the critic and the policy at the selected checkpoint, epochs, time and memory."""

from statistics import mean

from offrec.console import format_duration
from offrec.reports import labels
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.tables import Cell, Row, Table

DIAGNOSTICS = {
    "q_logged": "Q of the logged item",
    "return_logged": "return after it",
    "q_random": "Q of a random item",
    "entropy": "entropy of π",
    "kl_to_logging": "KL(π‖π̂_b)",
    "mass_rare": "π where π̂_b < 10⁻⁴",
}
OVERESTIMATION = "overestimation"
NOTES = {  # explanations by column
    "": "Means over seeds. Diagnostics are measured on validation events at the selected epoch.",
    "q_logged": "Overestimation: Q of the logged item minus the return after it, in the run's units of reward. A large "
    "positive value means that the critic promises more than the log earned.",
    "mass_rare": "π where π̂_b < 10⁻⁴: the probability that the policy puts on items without support in the log.",
}


def diagnostics_tables(results: StudyResults) -> list[Table]:
    """Build one table per log."""
    tables = []
    for log in results.logs:
        learners = [p for p in results.compared if p.group.log == log and p.group.kind == "learner"]
        names = [name for name in DIAGNOSTICS if any(name in policy.diagnostics for policy in learners)]
        sections: dict[str, list[Row]] = {}
        for policy in learners:
            cells = [*_training_cells(policy), *_diagnostic_cells(policy, names), *_cost_cells(policy)]
            sections.setdefault(labels.backbone_label(policy), []).append(Row(labels.policy_label(policy), cells))
        heads = [DIAGNOSTICS[name] for name in names]
        if "q_logged" in names:
            heads.insert(names.index("q_logged"), OVERESTIMATION)
        heads = ["epochs run", "selected epoch", "stopped early", *heads, "time per run", "peak memory"]
        note = " ".join(text for name, text in NOTES.items() if not name or name in names)
        if learners:
            tables.append(Table(f"diagnostics-{log}", f"Diagnostics: {log}", note, [], heads, list(sections.items())))
    return tables


def collapse_notes(results: StudyResults) -> list[str]:
    """Return one note per policy and condition of a collapse, with the sentence of its first seed."""
    notes = []
    for policy in results.compared:
        for condition in dict.fromkeys(name for one in policy.warnings.values() for name in one):
            seeds = [seed for seed, one in policy.warnings.items() if condition in one]
            where = f"{labels.policy_label(policy)} ({labels.backbone_label(policy)}) on {policy.group.log}"
            share = f"{len(seeds)} of {len(policy.results)} seeds; seed {seeds[0]}: "
            notes.append(f"Warning, {where}: {share}{policy.warnings[seeds[0]][condition]}")
    return notes


def _diagnostic_cells(policy: PolicyResults, names: list[str]) -> list[Cell]:
    cells = [_number(policy.diagnostics.get(name)) for name in names]
    if "q_logged" in names:
        known = {"q_logged", "return_logged"} <= policy.diagnostics.keys()
        above = policy.diagnostics["q_logged"] - policy.diagnostics["return_logged"] if known else None
        cells.insert(names.index("q_logged"), _number(above, "+"))
    return cells


def _number(value: float | None, sign: str = "") -> Cell:
    return Cell() if value is None else Cell(f"{value:{sign}.3g}".replace("-", "−"), sort=value)


def _training_cells(policy: PolicyResults) -> list[Cell]:
    """Return the epochs run and planned, the selected epoch, and the number of seeds that stopped early."""
    facts = [result.facts for result in policy.results]
    run = mean(len(one["learning_curve"]) for one in facts)
    selected = mean(one["selected_epoch"] for one in facts)
    planned = policy.group.options.get("training.epochs")
    early = sum(bool(one.get("stopped_early")) for one in facts)
    return [
        Cell(f"{run:.0f}", f"of {planned}" if planned else "", sort=run),
        Cell(f"{selected:.0f}", sort=selected),
        Cell(("yes" if len(facts) == 1 else f"{early} of {len(facts)} seeds") if early else "no", sort=early),
    ]


def _cost_cells(policy: PolicyResults) -> list[Cell]:
    """Return time and memory. The time of a resumed run is unknown."""
    seconds = [result.facts["seconds"] for result in policy.results if not result.facts.get("resumed")]
    memory = max((result.facts["peak_memory"] or 0 for result in policy.results), default=0)
    seeds = max(result.facts["concurrent_seeds"] for result in policy.results)
    return [
        Cell(format_duration(mean(seconds)), sort=mean(seconds)) if seconds else Cell("resumed"),
        Cell(f"{memory / 2**30:.2f} GiB", f"{seeds} concurrent seeds" if seeds > 1 else "", sort=memory)
        if memory
        else Cell(),
    ]
