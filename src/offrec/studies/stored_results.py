"""Read and write the results of a study's runs. Every file is verified when it is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data.arrays import DESCRIPTION, Array, describe_array, open_arrays
from offrec.data.files import publish_file
from offrec.data.json_files import read_json, write_json
from offrec.data.schema import Anything, Flag, ListOf, Maybe, Moment, Number, Scalar, Table, Text, Whole
from offrec.errors import InputError
from offrec.studies.study import PolicyKind, Run, Study

SAMPLED = "_sampled"  # the suffix of the results of sampled lists in the shop
RANK_CAP = 21  # ranks above 20 are stored as 21: no metric at 20 or less distinguishes them
MAX_REWARD = 1e12  # per session; sums of larger ones would overflow
ADVICE = "delete the run's .json file in that folder and repeat the study's command"
NUMBERS = Table(others=Maybe(Number(finite=False)))
METRICS = Table(others=Table({"events": Whole()}, others=Maybe(Number(finite=False))))  # by behaviour and metric
REWARD = Number(-MAX_REWARD, MAX_REWARD)
INTERVAL = Table({"mean": REWARD, "low": Maybe(REWARD), "high": Maybe(REWARD)}, {"gamma": Number(0.0, 1.0)})
ROLLOUT = Table(
    {
        **dict.fromkeys(("reward", "discounted", "length", "steps", "purchases"), INTERVAL),
        **dict.fromkeys(("policy", "play", "world"), Text()),
        **dict.fromkeys(("seed", "rollout_seed", "skip_recent"), Whole()),
        **dict.fromkeys(("k", "sessions", "population"), Whole(1)),
        "cut": Number(0.0, 1.0),
    }
)
ESTIMATE = Table({**dict.fromkeys(("value", "low", "high"), Maybe(REWARD)), "verdict": Maybe(Text())}, others=Scalar())
EPOCH = Table(
    {"epoch": Whole(1)},
    {
        "validation": NUMBERS,
        "loss": NUMBERS,
        "diagnostics": NUMBERS,
        "lists": NUMBERS,
        "warnings": Table(others=Scalar()),
    },
    Anything(),
)
MACHINE_KEYS = ("offrec", "commit", "python", "torch", "system", "processor", "device")
RESULT = Table(
    {
        "run": Text(),
        "arrays": Table(others=DESCRIPTION),
        "seconds": Number(0.0),
        "concurrent_seeds": Whole(1),
        "peak_memory": Maybe(Whole()),
        "finished_at": Moment(),
        "machine": Table({key: Maybe(Text()) for key in MACHINE_KEYS}, others=Scalar()),
    },
    {
        "validation": METRICS,
        "test": METRICS,
        "shop": Maybe(ROLLOUT),
        "shop_sampled": Maybe(ROLLOUT),
        "value": Maybe(ESTIMATE),
        "learning_curve": ListOf(EPOCH),
        "selected_epoch": Whole(1),
        "stopped_early": Flag(),
        "resumed": Flag(),
        "logging_policy": Maybe(NUMBERS),
    },
    Anything(),
)
MEASURED: dict[PolicyKind, tuple[str, ...]] = {  # what every result of such a policy has
    "learner": ("learning_curve", "selected_epoch"),
    "baseline": (),
    "shop": ("shop",),
}
FAILURE = Table({"run": Text(), "reason": Text()}, others=Anything())


def write_result(study: Study, run: Run, facts: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    """Store the result of a run: its arrays, then its JSON file. A run is done when its JSON file exists.

    Args:
        study: The study.
        run: The run.
        facts: JSON values.
        arrays: "ranks" uint8 [events] and "events" uint32 [2, events], "rewards" and, for lists sampled from
            SL, "rewards_sampled" float32 [visitors], as measured.
    """
    described = {kind: describe_array(array) for kind, array in arrays.items()}
    for kind, array in arrays.items():
        path = _array_path(study, run, kind)
        if kind != "events" or not _is_stored(path, described[kind]):
            with publish_file(path) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
    write_json(study.path("results", f"{run.name}.json"), {**facts, "run": run.name, "arrays": described}, indent=1)


def _array_path(study: Study, run: Run, kind: str) -> Path:
    """Return the path of an array. All runs on a dataset share its events."""
    return study.path("results", f"{run.dataset if kind == 'events' else run.name}.{kind}.npy")


def _is_stored(path: Path, description: dict[str, Any]) -> bool:
    try:
        open_arrays(path.parent, {path.stem: description}, advice=ADVICE)
    except InputError:
        return False
    return True


def write_failure(study: Study, run: Run, facts: dict[str, Any]) -> None:
    """Record that a run failed."""
    write_json(study.path("failed", f"{run.name}.json"), {"run": run.name, **facts}, indent=1)


def read_result(study: Study, run: Run) -> dict[str, Any]:
    """Read the JSON file of a finished run.

    Raises:
        InputError: If the file is missing or damaged, or belongs to another run.
    """
    path = study.path("results", f"{run.name}.json")
    facts = _read(path, RESULT, run)
    missing = [name for name in MEASURED[study.group(run).kind] if not facts.get(name)]
    if missing:
        raise InputError(f"{path} is damaged: it has no {missing[0]}; {ADVICE}.")
    if facts.get("selected_epoch", 1) > max(1, len(facts.get("learning_curve", []))):
        raise InputError(f"{path} is damaged: selected_epoch is not in learning_curve; {ADVICE}.")
    return facts


def read_failure(study: Study, run: Run) -> dict[str, Any]:
    """Read why a run failed."""
    return _read(study.path("failed", f"{run.name}.json"), FAILURE, run)


def _read(path: Path, schema: Table, run: Run) -> dict[str, Any]:
    try:
        facts = read_json(path, schema, advice=ADVICE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path} does not exist; repeat the study's command.") from error
    if facts["run"] != run.name:
        raise InputError(f"{path} is damaged: it belongs to the run {facts['run']!r}; {ADVICE}.")
    return facts


def read_array(study: Study, run: Run, facts: dict[str, Any], kind: str) -> Array:
    """Read "ranks" [events], "events" [2, events] or "rewards" [visitors] of a run.

    Args:
        study: The study.
        run: The run.
        facts: Its result.
        kind: "ranks", "events", "rewards" or "rewards_sampled".

    Raises:
        InputError: If the file is missing or damaged.
    """
    path = _array_path(study, run, kind)
    if kind not in facts["arrays"]:
        raise InputError(f"{study.path('results', f'{run.name}.json')} has no {kind}; {ADVICE}.")
    array = open_arrays(path.parent, {path.stem: facts["arrays"][kind]}, advice=ADVICE)[path.stem]
    if kind == "ranks":
        is_valid = array.dtype == np.uint8 and array.ndim == 1 and bool(((array >= 1) & (array <= RANK_CAP)).all())
        is_valid = is_valid and facts["arrays"].get("events", {}).get("shape") == [2, len(array)]
    elif kind == "events":
        behaviours = len(study.dataset(run.dataset).behaviours)
        is_valid = array.dtype == np.uint32 and array.ndim == 2 and len(array) == 2
        is_valid = is_valid and bool((array[0] <= array.shape[1]).all() and (array[1] < behaviours).all())
    else:
        is_informed = study.group(run).policy == "informed"  # it may be simulated with fewer visitors
        fewest = 1 if is_informed else study.visitors
        is_valid = array.dtype == np.float32 and array.ndim == 1 and fewest <= len(array) <= study.visitors
        is_valid = is_valid and bool((np.abs(array) <= MAX_REWARD).all())
    if not is_valid:
        raise InputError(f"{path} contains impossible {kind}; {ADVICE}.")
    return array
