"""Tables of what next-item figures do not show: what the shop paid, what the log lets one estimate, how sure the critic
was, what an option does."""

from collections.abc import Sequence
from statistics import mean

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.statistics import summary
from offrec.reports.tables import Cell, Row, Table, figure_cell, opponent
from offrec.studies.progress import format_duration
from offrec.studies.value import VALUE_AT_5

DIAGNOSTICS = {
    "q_logged": "Q of the logged item",
    "return_logged": "the return that followed",
    "q_random": "Q of a random item",
    "entropy": "entropy of π",
    "kl_to_logging": "KL(π‖π̂_b)",
    "mass_rare": "π where π̂_b < 10⁻⁴",
}

EXPLAINED = {  # by the column that needs it
    "": "Means over seeds; figures of critics and policies are those on validation events at the checkpoint kept.",
    "q_logged": "Over-estimation: Q of the logged item minus the return that followed it, in the run's units of "
    "reward; far above 0, the critic promises what the log does not pay.",
    "mass_rare": "π where π̂_b < 10⁻⁴: how much of the policy lies where the log can tell nothing.",
}

WORTH = (
    f"{VALUE_AT_5}: the mean return that followed the policy's top five items in the log, over test events (γ = 0.9, "
    "default rewards for all runs). It is an estimate from the log without a verdict."
)


def own(reading: StudyResults, log: str, name: str) -> PolicyResults | None:
    """One of the shop's own policies, or a baseline, on a log."""
    here = (e for e in reading.compared if e.group.log == log and e.group.kind != "learner")
    return next((entry for entry in here if entry.group.policy == name), None)


def earning_tables(reading: StudyResults, comparer: Comparer) -> list[Table]:
    """One a log: true reward where it comes from the shop, estimates where there are any."""
    tables = []
    for log in reading.logs:
        entries = [e for e in reading.compared if e.group.log == log and (e.values("", "reward") or _valued(e))]
        if entries:
            tables.append(_earning(reading, comparer, log, entries))
    return tables


def _valued(entry: PolicyResults) -> bool:
    return any(result.facts.get("value") for result in entry.results)


def _earning(reading: StudyResults, comparer: Comparer, log: str, entries: list[PolicyResults]) -> Table:
    true, estimated = any(e.values("", "reward") for e in entries), any(map(_valued, entries))
    over_sl = _family(comparer, entries, [opponent(reading, entry, "", "reward") for entry in entries])
    over_log = _family(comparer, entries, [own(reading, log, "logging")] * len(entries))
    means = {id(e): summary(list(e.values("", "reward").values())) for e in entries}
    ranked = sorted({found.mean for e in entries if e.group.kind != "shop" and (found := means[id(e)])}, reverse=True)
    sections: dict[str, list[Row]] = {}
    for entry, versus_sl, versus_log in zip(entries, over_sl, over_log, strict=True):
        found = means[id(entry)]
        place = ranked.index(found.mean) if found and entry.group.kind != "shop" else 2
        cells = []
        if true:
            cells.append(figure_cell(found, versus_sl, ("best", "second", "")[min(place, 2)], formatting.format_reward))
            cells += [_gain(versus_sl)] if any(over_sl) else []
            cells += [_gain(versus_log), _shop_mean(entry, "length", 1), _shop_mean(entry, "purchases", 2)]
        if estimated:
            cells += _estimate(entry)
        sections.setdefault(_section(entry), []).append(Row(labels.policy_label(entry), cells))
    sl = ["over SL"] if any(over_sl) else []
    heads = ["true reward a session", *sl, "over the logging policy", "picks", "purchases"] if true else []
    heads += ["value, estimated", "verdict"] if estimated else []
    title = f"What is earned: {log}" if true else f"What would be earned, estimated: {log}"
    return Table(f"earned-{log}", title, _note(entries, true, estimated, bool(sl)), [], heads, list(sections.items()))


def _note(entries: Sequence[PolicyResults], true: bool, estimated: bool, tested: bool) -> str:
    """`tested`: against SL."""
    value = "Value: estimated from test sessions alone, by fitted Q; believe it as far as its verdict goes."
    value += _spreads(entries)
    if not true:
        return value
    visitors = max(e.study.visitors for e in entries)
    others = any(e.group.kind != "shop" for e in entries)
    own = (["they have no stars"] if tested else []) + (["best and second best are among the others"] if others else [])
    return (
        f"What a session earned when the policy's best k items served {visitors:,} new visitors until they left, the "
        "same visitors for all. ± over seeds; in brackets: 95 % over visitors, paired."
        + (" Stars against SL as above." if tested else "")
        + f" The shop's own policies know what no log tells{'; ' if own else ''}{', and '.join(own)}."
        + (f" {value}" if estimated else "")
    )


def _spreads(entries: Sequence[PolicyResults]) -> str:
    """What stands beside a value: that depends on how many seeds have one."""
    counts = [len(entry.values("", "value")) for entry in entries]
    told = [" in brackets, where one seed has a value: its 95 % interval over test sessions"] if 1 in counts else []
    told += [" ± over seeds, where several have"] if any(count > 1 for count in counts) else []
    return f" ReferenceFigures it{';'.join(told)}." if told else ""


def _section(entry: PolicyResults) -> str:
    kinds = {"shop": "The shop's own", "baseline": "Without training"}
    return kinds.get(entry.group.kind) or labels.backbone_label(entry)


def _family(
    comparer: Comparer, entries: list[PolicyResults], others: Sequence[PolicyResults | None]
) -> list[Comparison | None]:
    """The shop's own are no part of what is tested, so they make no correction larger."""
    tested = [None if entry.group.kind == "shop" else other for entry, other in zip(entries, others, strict=True)]
    found = comparer.family(entries, tested, "", "reward")
    return [
        comparer.compare(entry, other, "", "reward")
        if entry.group.kind == "shop" and other is not None and other is not entry
        else one
        for entry, other, one in zip(entries, others, found, strict=True)
    ]


def _gain(found: Comparison | None) -> Cell:
    if found is None:
        return Cell()
    return Cell(
        formatting.format_gain(found.gain),
        formatting.format_interval(found.low, found.high, formatting.format_gain),
        sort=found.gain,
    )


def _shop_mean(entry: PolicyResults, what: str, digits: int) -> Cell:
    values = [r.facts["shop"][what]["mean"] for r in entry.results if r.facts.get("shop")]
    return Cell(f"{mean(values):.{digits}f}", sort=mean(values)) if values else Cell()


def _estimate(entry: PolicyResults) -> list[Cell]:
    known = [result.facts["value"] for result in entry.results if result.facts.get("value")]
    verdict = Cell("; ".join(filter(None, dict.fromkeys(str(one.get("verdict", "")) for one in known))) or "–")
    found = summary(list(entry.values("", "value").values()))
    if found is None:
        return [Cell("withheld") if known else Cell(), verdict]
    spread = f"± {formatting.format_reward(found.sd)}" if found.sd is not None else ""
    if len(known) == 1:
        spread = formatting.format_interval(known[0]["low"], known[0]["high"], formatting.format_reward)
    return [Cell(formatting.format_reward(found.mean), spread, sort=found.mean), verdict]


def diagnostics_tables(reading: StudyResults) -> list[Table]:
    """What each critic and policy looked like at the checkpoint that was kept, and what the run took."""
    tables = []
    for log in reading.logs:
        learners = [e for e in reading.compared if e.group.log == log and e.group.kind == "learner"]
        kinds = [kind for kind in DIAGNOSTICS if any(kind in e.last for e in learners)]
        sections: dict[str, list[Row]] = {}
        for entry in learners:
            cells = [_plain(entry.last.get(kind)) for kind in kinds]
            if "q_logged" in kinds:
                known = {"q_logged", "return_logged"} <= entry.last.keys()
                above = entry.last["q_logged"] - entry.last["return_logged"] if known else None
                cells.insert(kinds.index("q_logged"), _plain(above, "+"))
            sections.setdefault(labels.backbone_label(entry), []).append(
                Row(labels.policy_label(entry), [*cells, *_took(entry)])
            )
        heads = [DIAGNOSTICS[kind] for kind in kinds]
        if "q_logged" in kinds:
            heads.insert(kinds.index("q_logged"), "over-estimation")
        heads += ["epochs", "kept", "time a run", "peak_memory"]
        note = " ".join(words for kind, words in EXPLAINED.items() if not kind or kind in kinds)
        if learners:
            tables.append(Table(f"diagnostics-{log}", f"Diagnostics: {log}", note, [], heads, list(sections.items())))
    return tables


def _plain(value: float | None, sign: str = "") -> Cell:
    return Cell() if value is None else Cell(f"{value:{sign}.3g}".replace("-", "−"), sort=value)


def _took(entry: PolicyResults) -> list[Cell]:
    """Runs that were resumed say nothing of how long one takes."""
    whole = [r.facts["seconds"] for r in entry.results if not r.facts.get("resumed")]
    epochs = mean(len(r.facts["learning_curve"]) for r in entry.results)
    kept = mean(r.facts["selected_epoch"] for r in entry.results)
    memory = max((r.facts["peak_memory"] or 0 for r in entry.results), default=0)
    several = max(r.facts["concurrent_seeds"] for r in entry.results)
    return [
        Cell(f"{epochs:.0f}", sort=epochs),
        Cell(f"{kept:.0f}", sort=kept),
        Cell(format_duration(mean(whole)), sort=mean(whole)) if whole else Cell("resumed"),
        Cell(f"{memory / 2**30:.2f} GiB", f"{several} seeds at once" if several > 1 else "", sort=memory)
        if memory
        else Cell(),
    ]


def sweep_tables(reading: StudyResults) -> list[Table]:
    """One a log and option: a row a value, and what they are set beside."""
    tables = []
    for (log, learner, key), entries in sweeps(reading).items():
        several = reading.behaviours(log) if len(reading.behaviours(log)) > 1 else []
        wanted = [("NDCG@10", "all"), ("HR@5", "all"), *(("NDCG@10", name) for name in several)]
        wanted += [(VALUE_AT_5, "all"), ("reward", "")]
        shown = [(f, b) for f, b in wanted if any(e.values(b, f) for e in entries)]
        sections: dict[str, list[Row]] = {}
        for entry in entries:
            cells = [
                figure_cell(
                    summary(list(entry.values(b, f).values())),
                    None,
                    "",
                    formatting.format_figure if b else formatting.format_reward,
                )
                for f, b in shown
            ]
            level = entry.group.compare_with
            label = (
                labels.comparison_label(level)
                if level
                else f"{labels.option_label(key)} = {formatting.format_setting(entry.group.varied[key])}"
            )
            sections.setdefault("Compared with" if entry.group.compare_with else "Varied", []).append(Row(label, cells))
        heads = [
            {"reward": "true reward", VALUE_AT_5: f"{VALUE_AT_5}, estimated"}.get(f, f if b == "all" else f"{f} of {b}")
            for f, b in shown
        ]
        title = f"{learner} over {labels.option_label(key)}: {log}"
        note = "Test sessions, all behaviours unless one is named; mean ± standard deviation over seeds."
        tables.append(Table(f"sweep-{log}-{learner}-{key}", title, note, [], heads, list(sections.items())))
    return tables


def sweep_words(reading: StudyResults) -> list[str]:
    """What value@5 is, where it stands."""
    return [WORTH] if any(entry.values("all", VALUE_AT_5) for entry in reading.swept) else []


def sweeps(reading: StudyResults) -> dict[tuple[str, str, str], list[PolicyResults]]:
    """(log, learner, option) → its values in order, then the levels beside them."""
    found: dict[tuple[str, str, str], list[PolicyResults]] = {}
    for entry in reading.swept:
        for key in entry.group.varied:
            found.setdefault((entry.group.log, labels.learner_label(entry.group), key), []).append(entry)
    for (log, _, _), entries in found.items():
        beside = (e for e in reading.swept if e.group.compare_with and e.group.log == log)
        entries += [e for e in beside if any(study in entries[0].studies for study in e.studies)]
    return {key: [entry for entry in entries if entry.results] for key, entries in found.items()}
