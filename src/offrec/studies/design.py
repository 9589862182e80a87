"""Plan a study from the arguments of a command. Invalid arguments are rejected before anything is written."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.data.dataset import Dataset
from offrec.data.files import remove_leftovers
from offrec.data.locks import lock_folder
from offrec.data.rewards import REWARDS, event_rewards, event_rewards_or_none
from offrec.errors import InputError
from offrec.plugins import Settings
from offrec.runs.option_errors import merge_flags
from offrec.runs.option_text import parse_settings
from offrec.runs.options import resolve_options
from offrec.runs.presets import PRESETS
from offrec.studies.arguments import RUN_OPTIONS, parse_learner_settings, parse_names, parse_seeds, parse_vary
from offrec.studies.compatibility import check_protocols, check_splits
from offrec.studies.folder import extend_study, is_study_folder, read_study, write_study
from offrec.studies.labels import add_labels
from offrec.studies.study import INFORMED_VISITORS, Run, RunGroup, Study, StudyKind, describe_dataset
from offrec.studies.yardsticks import check_visitors, played, shop_groups

LEARNER_OPTIONS = ("algorithm.", "critic.")  # prefixes of options that do not carry over to another learner


def plan_comparison(
    datasets: Sequence[Path],
    out: Path,
    *,
    algorithms: str = "all",
    backbones: str | None = None,
    baselines: str = "all",
    seeds: str = "5",
    preset: str = "strong",
    select: str | None = None,
    settings: Sequence[str] = (),
    visitors: int = 4000,
    informed_visitors: int = INFORMED_VISITORS,
    skip_recent: int | None = None,
    twins: bool = True,
    repeated_splits: bool = False,
    value: bool = False,
) -> Study:
    """Plan every learner with every backbone, and every baseline, on every log.

    Args:
        datasets: Dataset folders.
        out: The study's folder; nothing is written yet.
        algorithms: Learners separated by commas, or "all".
        backbones: Backbones separated by commas; None: the preset's backbone.
        baselines: Baselines separated by commas, "all" or "none".
        seeds: A number of seeds ("5") or a list ("0,3,7").
        preset: Preset of all learners.
        select: How checkpoints are selected; None: as each learner's preset says.
        settings: KEY=VALUE for all learners, or LEARNER:KEY=VALUE for one.
        visitors: Simulated visitors per policy.
        informed_visitors: How many of them the shop's policy `informed` serves; 0 leaves it out.
        skip_recent: How many of a visitor's last picks each policy skips; None: as its record says.
        twins: Whether each learner that looks ahead gets a twin that does not, on logs of the simulated shop.
        repeated_splits: Whether the datasets are splits of one log; each dataset then has one seed.
        value: Whether the value of each policy is estimated.

    Raises:
        InputError: If a name, an option or a combination of datasets is invalid.
    """
    from offrec.baselines import BASELINES  # imported here: a sweep needs no scipy

    learner_names = parse_names(algorithms, LEARNERS)
    backbone_names = parse_names(backbones or PRESETS[preset].backbone, BACKBONES)
    baseline_names = [] if baselines == "none" else parse_names(baselines, BASELINES)
    repeats = list(_repeats(_open(datasets), seeds, repeated_splits))
    learner_settings = parse_learner_settings(settings, learner_names)
    groups: list[RunGroup] = []
    left_out: list[str] = []
    for log, dataset in _logs(repeats):
        groups += shop_groups(log, dataset, informed_visitors)
        left_out += filter(None, (BASELINES[name].left_out(dataset) for name in baseline_names))
        missing = {name: BASELINES[name].missing(dataset) for name in baseline_names}
        names = [name for name, need in missing.items() if need is None]
        if baselines != "all" and len(names) < len(missing):
            name = next(name for name in missing if name not in names)
            raise InputError(
                f"--baselines {name} needs {missing[name]}, but {dataset.path} contains none; leave it out."
            )
        untrained = [RunGroup(f"{log}.{name}", log, "baseline", name) for name in names]
        groups += [played(group, dataset, skip_recent) for group in untrained]
    for backbone in backbone_names:
        for log, dataset in _logs(repeats):
            for name in learner_names:
                has_backbone = "network.backbone" not in LEARNERS[name].ignored
                if not has_backbone and backbone != backbone_names[0]:
                    continue  # it is the same for every backbone
                flags = {
                    "--algorithms": ("algorithm.name", name),
                    "--backbones": ("network.backbone", backbone if has_backbone else None),
                    "--preset": ("preset", preset),
                    "--select": ("select", select),
                }
                own_settings = merge_flags(flags, learner_settings[name])
                options = resolve_settings(dataset, name, own_settings, estimate_value=value)
                group = RunGroup(f"{log}.{name}.{backbone}", log, "learner", name, backbone, preset, options)
                groups.append(played(group, dataset, skip_recent))
                myopic = LEARNERS[name].myopic if twins and "shop" in dataset.meta else None
                if myopic is not None:
                    own_settings |= myopic
                    options = resolve_settings(dataset, name, own_settings, estimate_value=value)
                    twin = replace(groups[-1], name=f"{group.name}.twin", options=options, is_twin=True)
                    groups += [twin] if options != group.options else []
    request = {
        "algorithms": learner_names,
        "backbones": backbone_names,
        "preset": preset,
        "select": select,
        "repeated_splits": repeated_splits,
        "settings": list(settings),
        "left_out": left_out,
    }
    study = _study("compare", out, groups, repeats, visitors, informed_visitors, request)
    check_splits(study.datasets)
    return replace(study, estimate_value=value)


def plan_sweep(
    datasets: Sequence[Path],
    out: Path,
    *,
    algorithm: str,
    vary: Sequence[str],
    compare_with: Sequence[str] = (),
    backbone: str | None = None,
    seeds: str = "3",
    preset: str = "strong",
    select: str | None = None,
    settings: Sequence[str] = (),
    visitors: int = 4000,
    informed_visitors: int = INFORMED_VISITORS,
    value: bool = False,
) -> Study:
    """Plan one learner with one option at a time set to each of several values.

    Args:
        datasets: Dataset folders.
        out: The study's folder; nothing is written yet.
        algorithm: The learner.
        vary: KEY=VALUE,VALUE… for each varied option.
        compare_with: KEY=VALUE,KEY=VALUE… for each run that the varied ones are compared with.
        backbone: The backbone; None: the preset's backbone.
        seeds: A number of seeds ("3") or a list ("0,3,7").
        preset: Preset of all runs.
        select: How checkpoints are selected; None: as the learner's preset says.
        settings: KEY=VALUE for all runs.
        visitors: Simulated visitors per policy.
        informed_visitors: How many of them the shop's policy `informed` serves; 0 leaves it out.
        value: Whether value@5 is computed on test sessions.

    Raises:
        InputError: If a name, an option or a combination of datasets is invalid.
    """
    (algorithm,) = parse_names(algorithm, LEARNERS)
    (network,) = parse_names(backbone or PRESETS[preset].backbone, BACKBONES)
    if not vary:
        raise InputError("--vary is missing; give KEY=VALUE,VALUE…, for example --vary algorithm.alpha=0.01,0.1,1.")
    repeats = list(_repeats(_open(datasets), seeds, repeated_splits=False))
    flags = {
        "--algorithm": ("algorithm.name", algorithm),
        "--backbone": ("network.backbone", network),
        "--preset": ("preset", preset),
        "--select": ("select", select),
    }
    shared = merge_flags(flags, parse_learner_settings(settings, [algorithm])[algorithm])
    groups: list[RunGroup] = []
    for log, dataset in _logs(repeats):
        if value:
            _check_default_rewards(dataset)
        groups += shop_groups(log, dataset, informed_visitors)
        for key, values in map(parse_vary, vary):
            for text in values:
                options = resolve_settings(dataset, algorithm, {**shared, key: text})
                name = f"{log}.{algorithm}.{network}.{key}={text}"
                varied = {key: options[key]}
                group = RunGroup(name, log, "learner", algorithm, network, preset, options, varied=varied)
                groups.append(played(group, dataset, None))
        compared = [_comparison_group(log, dataset, algorithm, shared, text) for text in compare_with]
        groups += [played(group, dataset, None) for group in compared]
    request = {
        "algorithm": algorithm,
        "backbone": network,
        "preset": preset,
        "vary": list(vary),
        "settings": list(settings),
    }
    return replace(_study("sweep", out, groups, repeats, visitors, informed_visitors, request), estimate_value=value)


def create_or_extend(study: Study) -> Study:
    """Write study.json. If the folder already contains a study, extend it.

    Returns:
        The study as stored.

    Raises:
        InputError: If the folder contains something else, or a study that cannot be extended in this way.
    """
    with lock_folder(study.folder, advice="wait for it, or choose another --out"):
        return _create_or_extend(study)


def _create_or_extend(study: Study) -> Study:
    remove_leftovers(study.folder)
    if is_study_folder(study.folder):
        study = extend_study(read_study(study.folder), study)
        check_protocols(study.datasets)
        if study.kind == "compare":
            check_splits(study.datasets)
    elif study.folder.is_file():
        raise InputError(f"{study.folder} is a file; a study needs a folder; choose another --out.")
    elif study.folder.is_dir() and any(study.folder.iterdir()):
        raise InputError(f"{study.folder} is not empty and not a study folder; choose another --out.")
    write_study(study)
    return study


def resolve_settings(
    dataset: Dataset, algorithm: str, settings: Settings, *, estimate_value: bool = False
) -> dict[str, Any]:
    """Return every option of a policy, so that presets of a later version do not change the study.

    Args:
        dataset: The dataset; presets depend on its format.
        algorithm: The learner.
        settings: The settings that differ from the preset.
        estimate_value: Whether the policy's value is estimated, which needs a reward for every behaviour.

    Raises:
        InputError: If a setting is invalid or a reward is missing.
    """
    try:
        options = resolve_options({**settings, "algorithm.name": algorithm}, dataset.protocol.format)
        needed = estimate_value or options.learner.needs_reward or options.select in ("reward", "value")
        event_rewards(dataset, options.reward, needed=needed)
    except InputError as error:
        raise InputError(f"{algorithm} on {dataset.path.name}: {error}") from error
    return {key: value for key, value in options.settings().items() if key not in RUN_OPTIONS}


def _check_default_rewards(dataset: Dataset) -> None:
    """Raise an error if a behaviour has no default reward; a sweep estimates values in default rewards."""
    if event_rewards_or_none(dataset, {}) is None:
        raise InputError(
            f"{dataset.path.name} has the behaviours {', '.join(dataset.behaviours)}; --value of a sweep uses default "
            f"rewards, which exist only for {', '.join(REWARDS)}; leave out --value."
        )


def _comparison_group(log: str, dataset: Dataset, algorithm: str, shared: Settings, text: str) -> RunGroup:
    """Plan the same learner with other settings, or another learner without the options of the first."""
    settings = parse_settings(part for part in text.split(",") if part)
    learner = str(settings.pop("algorithm.name", algorithm))
    if learner != algorithm:
        shared = {key: value for key, value in shared.items() if not key.startswith(LEARNER_OPTIONS)}
    options = resolve_settings(dataset, learner, {**shared, **settings})
    network, preset = str(shared["network.backbone"]), str(shared["preset"])
    name = f"{log}.{learner}.{network}.{text}"
    return RunGroup(name, log, "learner", learner, network, preset, options, compare_with=text)


def _study(
    kind: StudyKind,
    out: Path,
    groups: Sequence[RunGroup],
    repeats: Sequence[tuple[str, Dataset, int]],
    visitors: int,
    informed_visitors: int,
    request: dict[str, Any],
) -> Study:
    check_visitors(visitors, informed_visitors)
    runs: list[Run] = []
    for group in groups:
        of_log = [(dataset, seed) for log, dataset, seed in repeats if log == group.log]
        if group.kind != "learner":  # policies without training differ only by split
            of_log = list({dataset.fingerprint: (dataset, seed) for dataset, seed in reversed(of_log)}.values())[::-1]
        runs += [Run(f"{group.name}.{seed}", group.name, dataset.path.resolve().name, seed) for dataset, seed in of_log]
    described = {dataset.fingerprint: describe_dataset(dataset, log) for log, dataset, _ in repeats}
    check_protocols(described.values())
    labelled = tuple(map(add_labels, groups))
    return Study(
        out,
        kind,
        tuple(described.values()),
        labelled,
        tuple(runs),
        visitors=visitors,
        informed_visitors=min(informed_visitors, visitors),
        request=request,
    )


def _open(paths: Sequence[Path]) -> list[Dataset]:
    if not paths:
        raise InputError("Give at least one dataset folder written by `offrec prepare`.")
    datasets = [Dataset.open(path) for path in paths]
    names = [dataset.path.resolve().name for dataset in datasets]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f"Two dataset folders are called {duplicate}; rename one of them.")
    for first, other in combinations(datasets, 2):
        if first.fingerprint == other.fingerprint:
            raise InputError(f"{first.path} and {other.path} are the same dataset; give it once.")
    return datasets


def _repeats(datasets: Sequence[Dataset], seeds: str, repeated_splits: bool) -> Iterator[tuple[str, Dataset, int]]:
    """Yield (log, dataset, seed). Repeated splits are one log in several datasets, each with one seed."""
    numbers = parse_seeds(seeds)
    if not repeated_splits:
        yield from ((dataset.path.resolve().name, dataset, seed) for dataset in datasets for seed in numbers)
        return
    first = datasets[0]
    for other in datasets[1:]:
        same = replace(other.protocol, split_seed=first.protocol.split_seed) == first.protocol
        if not same or other.meta["counts"]["events"] != first.meta["counts"]["events"]:
            raise InputError(
                f"{other.path} is not another split of {first.path}; --repeated-splits needs splits of one log."
            )
    if len(numbers) != len(datasets):
        raise InputError(
            f"--repeated-splits needs one seed for each of the {len(datasets)} datasets; give --seeds {len(datasets)}."
        )
    yield from ((first.path.resolve().name, dataset, seed) for dataset, seed in zip(datasets, numbers, strict=True))


def _logs(repeats: Iterable[tuple[str, Dataset, int]]) -> list[tuple[str, Dataset]]:
    """Return each log once, with one of its datasets: all have the same format."""
    return list({log: (log, dataset) for log, dataset, _ in repeats}.values())
