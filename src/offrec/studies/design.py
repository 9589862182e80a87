"""From what a person types to what a study asks. What can be refused is refused here, before anything is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.data.dataset import Dataset
from offrec.data.transitions import REWARDS, reward_vector, reward_vector_or_none
from offrec.errors import InputError
from offrec.plugins import Registry, Settings
from offrec.runs.option_text import parse_settings
from offrec.runs.options import resolve_options
from offrec.runs.presets import PRESETS
from offrec.studies.folder import extend_study, is_study_folder, read_study, write_study
from offrec.studies.study import Run, RunGroup, Study, StudyDataset, StudyKind, describe_dataset

SHOP_POLICIES = ("random", "logging", "greedy", "oracle")  # the shop's own policies
LEARNER_OPTIONS = ("algorithm.", "critic.")  # options that mean something else, or nothing, to another learner
RUN_OPTIONS = ("seed", "device")  # options that a run has and a policy has not
SCORING_FIELDS = ("split", "split_parts", "score_first", "unseen", "score_last")  # what has to be equal within a table


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
    repeated_splits: bool = False,
    value: bool = False,
) -> Study:
    """Every learner with every backbone and every baseline on every log."""
    from offrec.baselines import BASELINES  # imported here: a sweep needs no scipy

    learners = _chosen(algorithms, LEARNERS)
    networks = _chosen(backbones or PRESETS[preset].backbone, BACKBONES)
    without = [] if baselines == "none" else _chosen(baselines, BASELINES)
    opened = _opened(datasets)
    repeats = list(_repeats(opened, seeds, repeated_splits))
    own = _own_settings(settings, learners)
    groups: list[RunGroup] = []
    for log, dataset in _logs(repeats):
        groups += [
            RunGroup(f"{log}.{name}", log, "shop", name) for name in (SHOP_POLICIES if "shop" in dataset.meta else ())
        ]
        groups += [RunGroup(f"{log}.{name}", log, "baseline", name) for name in without]
    for backbone in networks:
        for log, dataset in _logs(repeats):
            for name in learners:
                flat = {"network.backbone": backbone, "preset": preset, **({"select": select} if select else {})}
                options = resolve_settings(dataset, name, {**flat, **own[name]}, valued=value)
                groups.append(RunGroup(f"{log}.{name}.{backbone}", log, "learner", name, backbone, preset, options))
    request = {
        "algorithms": learners,
        "backbones": networks,
        "preset": preset,
        "select": select,
        "repeated_splits": repeated_splits,
    }
    study = _study("compare", out, groups, repeats, visitors, {**request, "settings": list(settings)})
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
    value: bool = False,
) -> Study:
    """One learner, with one option at a time set to each of several values; `levels` are other settings to set them
    beside."""
    (algorithm,) = _chosen(algorithm, LEARNERS)
    (network,) = _chosen(backbone or PRESETS[preset].backbone, BACKBONES)
    if not vary:
        raise InputError("A sweep needs --vary KEY=VALUE,VALUE…, for example --vary algorithm.alpha=0.01,0.1,1.")
    repeats = list(_repeats(_opened(datasets), seeds, repeated_splits=False))
    flat = {"network.backbone": network, "preset": preset, **({"select": select} if select else {})}
    flat |= _own_settings(settings, [algorithm])[algorithm]
    groups: list[RunGroup] = []
    for log, dataset in _logs(repeats):
        if value:
            _check_worth(dataset)
        if "shop" in dataset.meta:
            groups += [RunGroup(f"{log}.{name}", log, "shop", name) for name in SHOP_POLICIES]
        for key, values in map(_varied, vary):
            for text in values:
                options = resolve_settings(dataset, algorithm, {**flat, key: text})
                name = f"{log}.{algorithm}.{network}.{key}={text}"
                groups.append(
                    RunGroup(name, log, "learner", algorithm, network, preset, options, varied={key: options[key]})
                )
        groups += [_level(log, dataset, algorithm, flat, level) for level in compare_with]
    request = {"algorithm": algorithm, "backbone": network, "preset": preset, "vary": list(vary)}
    request["settings"] = list(settings)
    return replace(_study("sweep", out, groups, repeats, visitors, request), estimate_value=value)


def _check_worth(dataset: Dataset) -> None:
    """A sweep's values are in default rewards: a curve over rewards needs one unit."""
    if reward_vector_or_none(dataset.behaviours, {}) is None:
        raise InputError(
            f"{dataset.path.name} has the behaviours {', '.join(dataset.behaviours)}; a sweep's --value counts in "
            f"default rewards whatever its runs are given, and these are known for {', '.join(REWARDS)} only, so leave "
            "--value out."
        )


def _level(log: str, dataset: Dataset, algorithm: str, flat: Settings, level: str) -> RunGroup:
    """The same learner with other settings, or another learner, for which the first one's own settings mean nothing."""
    extra = parse_settings(part for part in level.split(",") if part)
    learner = str(extra.pop("algorithm.name", algorithm))
    kept = flat if learner == algorithm else {k: v for k, v in flat.items() if not k.startswith(LEARNER_OPTIONS)}
    options = resolve_settings(dataset, learner, {**kept, **extra})
    network, preset = str(flat["network.backbone"]), str(flat["preset"])
    return RunGroup(
        f"{log}.{learner}.{network}.{level}", log, "learner", learner, network, preset, options, compare_with=level
    )


def create_or_extend(study: Study) -> Study:
    """Write study.json; where the folder is a study already, go on with it, wider if more is asked."""
    if is_study_folder(study.folder):
        study = extend_study(read_study(study.folder), study)
        check_protocols(study.datasets)
        if study.kind == "compare":
            check_splits(study.datasets)
    elif study.folder.is_file():
        raise InputError(f"{study.folder} is a file, and a study is a folder; choose another --out.")
    elif study.folder.is_dir() and any(study.folder.iterdir()):
        raise InputError(f"{study.folder} is not empty and no study; choose another --out.")
    write_study(study)
    return study


def resolve_settings(dataset: Dataset, algorithm: str, flat: Settings, *, valued: bool = False) -> dict[str, Any]:
    """Every option of a policy, so that a study goes on with them whatever a later version's presets say. `valued`: its
    value is to be estimated, which takes rewards.
    """
    try:
        options = resolve_options({**flat, "algorithm.name": algorithm}, dataset.protocol.format)
        needed = valued or options.learner.needs_reward or options.select in ("reward", "value")
        reward_vector(dataset.behaviours, options.reward, needed=needed)
    except InputError as error:
        raise InputError(f"{algorithm} on {dataset.path.name}: {error}") from error
    return {key: value for key, value in options.settings().items() if key not in RUN_OPTIONS}


def check_protocols(logs: Iterable[StudyDataset]) -> None:
    """Figures of logs that are scored differently do not belong in one table."""
    first, *others = logs
    for other in others:
        for name in SCORING_FIELDS:
            if first.protocol[name] != other.protocol[name]:
                raise InputError(
                    f"{first.name} has {name} = {_said(first.protocol[name])} and {other.name} has "
                    f"{_said(other.protocol[name])}, so they do not belong in one table; prepare them alike, or make "
                    "two studies."
                )


def check_splits(logs: Sequence[StudyDataset]) -> None:
    """One log split twice is no second log: each would have a column, as if both were evidence of their own."""
    for first, other in combinations(logs, 2):
        again = {**other.protocol, "split_seed": first.protocol["split_seed"]} == first.protocol
        if first.log != other.log and again and other.protocol != first.protocol and other.counts == first.counts:
            raise InputError(
                f"{first.name} and {other.name} are one log with --split-seed {first.protocol['split_seed']} and "
                f"{other.protocol['split_seed']}; add --repeated-splits and one seed per dataset, or leave one out."
            )


def _said(value: Any) -> str:
    return ":".join(f"{part:g}" for part in value) if isinstance(value, list) else str(value)


def _study(
    kind: StudyKind,
    out: Path,
    groups: Sequence[RunGroup],
    repeats: Sequence[tuple[str, Dataset, int]],
    visitors: int,
    request: dict[str, Any],
) -> Study:
    if visitors < 1:
        raise InputError(f"--visitors is {visitors}; it must be at least 1.")
    runs: list[Run] = []
    for group in groups:
        mine = [(dataset, seed) for log, dataset, seed in repeats if log == group.log]
        if group.kind != "learner":  # nothing to draw but the split
            mine = list({dataset.fingerprint: (dataset, seed) for dataset, seed in reversed(mine)}.values())[::-1]
        runs += [Run(f"{group.name}.{seed}", group.name, dataset.path.resolve().name, seed) for dataset, seed in mine]
    kept = {dataset.fingerprint: describe_dataset(dataset, log) for log, dataset, _ in repeats}
    logs = tuple(kept.values())
    check_protocols(logs)
    return Study(out, kind, logs, tuple(groups), tuple(runs), visitors=visitors, request=request)


def _opened(datasets: Sequence[Path]) -> list[Dataset]:
    if not datasets:
        raise InputError("Give at least one dataset: a folder made by `offrec prepare`.")
    opened = [Dataset.open(path) for path in datasets]
    names = [dataset.path.resolve().name for dataset in opened]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"Two datasets are called {twice}; give their folders different names.")
    for one, other in combinations(opened, 2):
        if one.fingerprint == other.fingerprint:
            raise InputError(f"{one.path} and {other.path} are the same dataset; give it once.")
    return opened


def _repeats(datasets: Sequence[Dataset], seeds: str, repeated_splits: bool) -> Iterator[tuple[str, Dataset, int]]:
    """(log, dataset, seed): where the split is redrawn, one log in several datasets, each with a seed of its own."""
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
            f"--repeated-splits gives each of {len(datasets)} datasets a seed of its own; say --seeds {len(datasets)}."
        )
    yield from ((first.path.resolve().name, dataset, seed) for dataset, seed in zip(datasets, numbers, strict=True))


def _logs(repeats: Iterable[tuple[str, Dataset, int]]) -> list[tuple[str, Dataset]]:
    return list({log: (log, dataset) for log, dataset, _ in repeats}.values())


def parse_seeds(text: str) -> list[int]:
    """ "5": five of them, 0 to 4; "0,3": these."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and "," not in text:
        numbers = list(range(numbers[0]))
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise InputError(f"--seeds is {text!r}; give a number of seeds, as in 5, or different seeds, as in 0,3,7.")
    return numbers


def _chosen(text: str, registry: Registry[Any]) -> list[str]:
    """Names separated by commas, or all of a registry; an unknown name is refused."""
    names = list(registry) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    return list(dict.fromkeys(registry[name].name for name in names or [text]))


def _own_settings(pairs: Sequence[str], learners: Sequence[str]) -> Mapping[str, Settings]:
    """--set KEY=VALUE is for all learners, --set dc:KEY=VALUE for one."""
    found: dict[str, Settings] = {name: {} for name in learners}
    for pair in sorted(pairs, key=lambda pair: ":" in pair.partition("=")[0]):
        owner, colon, rest = pair.partition(":")
        if not colon or "=" in owner:
            owner, rest = "", pair
        elif owner not in found:
            raise InputError(f"--set {pair} is for {owner!r}, which is not asked; asked are {', '.join(found)}.")
        for name in [owner] if owner else found:
            found[name] |= parse_settings([rest])
    return found


def _varied(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    found = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not found:
        raise InputError(f"--vary {text} is not of the form KEY=VALUE,VALUE…, for example algorithm.alpha=0.01,0.1,1.")
    if key.strip() in (*RUN_OPTIONS, "algorithm.name", "preset", "network.backbone"):
        raise InputError(
            f"--vary {key.strip()} is not for a sweep; `offrec compare` sets learners, backbones and seeds."
        )
    return key.strip(), list(dict.fromkeys(found))
