"""Stamp results with the options that made them, so that `list_evidence.py` can tell when they are stale.

    from evidence import learner, world, write_results

    write_results(path, rows, {"dc": learner(algorithm="dc"), "demo": world("demo")})

    python benchmarks/evidence.py results/study.csv.gz STUDY…       # stamp a table or report made from studies

The stamp contains the command, commit, machine and date, and the options that the figures depend on: learners as
`resolve_options` resolves them, worlds, baselines, the protocol. It stores what was given as well as what was resolved,
so that the same options can be resolved again with later code.
"""

import argparse
import hashlib
import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNSTAMPED_ROWS = {"command": None, "commit": None, "hash": None, "options": {}}  # marks rows from before stamps
Option = dict[str, Any]  # {"kind": …, "given": {…}, "resolved": {…}}


def learner(
    settings: Mapping[str, Any] | None = None, dataset_format: str = "events", *, algorithm: str | None = None
) -> Option:
    """Return the options of a run: what is given, and what `resolve_options` makes of it.

    Args:
        settings: Settings under dotted keys; others have their defaults.
        dataset_format: Raw format of the dataset.
        algorithm: Short for the setting algorithm.name.
    """
    given = {**(settings or {}), **({"algorithm.name": algorithm} if algorithm else {})}
    return _option("learner", {"settings": given, "format": dataset_format})


def trained(settings: Mapping[str, Any], dataset_format: str = "events") -> Option:
    """Return the options of a finished run or of a group of a study, which store every setting.

    Settings that equal their default count as not given, so that a later change of the default makes them stale.
    """
    from offrec.runs.folder import FREE
    from offrec.runs.options import resolve_options

    base = {key: settings[key] for key in ("algorithm.name", "preset", "network.backbone") if settings.get(key)}
    defaults = _plain(resolve_options(base, dataset_format).settings())
    own = {key: value for key, value in _plain(settings).items() if key not in (*FREE, "seed")}
    return learner({**base, **{key: value for key, value in own.items() if defaults.get(key) != value}}, dataset_format)


def world(name: str) -> Option:
    """Return the parameters of a world of the shop."""
    return _option("world", {"name": name})


def baseline(name: str) -> Option:
    """Return the parameters of a baseline, or nothing for a policy of the shop."""
    return _option("baseline", {"name": name})


def protocol(**given: Any) -> Option:
    """Return the protocol of a dataset: the given fields, others with their defaults."""
    return _option("protocol", given)


def estimate(**given: Any) -> Option:
    """Return the options of a fitted Q: the given fields, others with their defaults."""
    return _option("estimate", given)


def script_arguments(given: argparse.Namespace | Mapping[str, Any], *without: str) -> Option:
    """Return the arguments of a script as options, without paths and the named ones. They never become stale."""
    values = vars(given) if isinstance(given, argparse.Namespace) else dict(given)
    return _option("arguments", {k: v for k, v in values.items() if k not in without and not _has_path(v)})


def write_results(
    path: Path,
    payload: Any,
    options: Mapping[str, Option],
    *,
    command: str | None = None,
    device: str = "cpu",
    made_from: Sequence[Path] = (),
    extends: Path | None = None,
) -> None:
    """Write results as JSON with a stamp.

    A list is stored under "rows". If the file exists and the new rows begin with its rows, its stamps are kept; the
    file then has one stamp per command, commit and set of options.

    Args:
        path: The file.
        payload: A list of rows or a dictionary without the key "evidence".
        options: The options that the figures depend on, under labels of your choice; see `learner`, `world`, ….
        command: The command; by default the one of this process.
        device: Device of the measurement.
        made_from: Stamped files or folders of studies that the rows were collected from. Their stamps replace that of
            this process, because they may have been measured elsewhere; `options` are added to them.
        extends: A stamped file whose rows the payload contains next to new ones. Its stamps are kept.

    Example:
        >>> write_results(path, rows, {"dc": learner(algorithm="dc"), "demo": world("demo")})
    """
    content = {"rows": payload} if isinstance(payload, list) else dict(payload)
    if "evidence" in content or (isinstance(payload, Mapping) and set(payload) == {"rows"}):
        raise ValueError('payload must not have the key "evidence" or "rows" alone; choose another key.')
    stamps = collect_stamps(made_from, options) if made_from else [make_stamp(options, command, device)]
    known = [_identity(one) for one in stamps]
    before = _stamps_of_kept_rows(path, payload) if extends is None else read_stamps(extends) or [UNSTAMPED_ROWS]
    earlier = [one for one in before if _identity(one) not in known]
    _publish(path, {"evidence": [*earlier, *stamps], **content})


def write_stamp(path: Path, made_from: Sequence[Path]) -> None:
    """Write the stamp of a file that is not JSON to FILE.stamp.json next to it.

    Args:
        path: The file, such as a table or a report.
        made_from: The stamped files or the folders of studies that it was made from.
    """
    _publish(path.with_name(path.name + ".stamp.json"), {"evidence": collect_stamps(made_from, {})})


def read_results(path: Path) -> Any:
    """Return the payload of a results file, whether it has a stamp or not."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or "evidence" not in content:
        return content
    del content["evidence"]
    return content["rows"] if set(content) == {"rows"} else content


def make_stamp(options: Mapping[str, Option], command: str | None = None, device: str = "cpu") -> dict[str, Any]:
    """Return the stamp of results that are measured now."""
    from offrec.studies.machine import describe_machine

    machine = {**describe_machine(device), "cores": os.cpu_count()}
    del machine["commit"]  # describes changes of one package only
    script = Path(sys.argv[0]).resolve()
    words = [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *sys.argv[1:]]
    return {
        "command": command or "python " + shlex.join(words),
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "hash": options_hash(options),
        "options": dict(options),
    }


def _commit() -> str | None:
    """Return the commit of the source tree; a + marks uncommitted changes of the code.

    The environment variable OFFREC_COMMIT names it for a copy of the tree whose git is missing or older.
    """
    if named := os.environ.get("OFFREC_COMMIT"):
        return named
    commit = git(ROOT, "rev-parse", "--short", "HEAD")
    changes = git(ROOT, "status", "--porcelain", "--untracked-files=no", "src", "benchmarks")
    return (commit + ("+" if changes else "")) or None


def git(root: Path, *words: str) -> str:
    """Return the output of a git command, or nothing if it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def collect_stamps(paths: Sequence[Path], options: Mapping[str, Option]) -> list[dict[str, Any]]:
    """Return the stamps of files or studies, one per command, commit and machine, with all options that it covers."""
    merged: dict[str, dict[str, Any]] = {}
    read = {path: _study_stamps(path) if (path / "study.json").exists() else read_stamps(path) for path in paths}
    for stamp in (stamp for stamps in read.values() for stamp in stamps or [UNSTAMPED_ROWS]):
        key = json.dumps([stamp["command"], stamp["commit"], stamp.get("machine")])
        before = merged.get(key, {"options": options if stamp["hash"] else {}})
        merged[key] = {**stamp, "options": {**before["options"], **stamp["options"]}}
    return [{**stamp, "hash": options_hash(stamp["options"]) if stamp["hash"] else None} for stamp in merged.values()]


def _study_stamps(folder: Path) -> list[dict[str, Any]]:
    """Return one stamp per finished run of a study, with the commit and machine of the run."""
    from offrec.studies.folder import read_study

    study, stamps = read_study(folder), []
    protocols = {one.name: one.protocol for one in study.datasets}
    for run in (run for run in study.runs if study.is_done(run)):
        path, group = study.path("results", f"{run.name}.json"), study.group(run)
        machine = dict(json.loads(path.read_text())["machine"])
        options = {f"protocol of {run.dataset}": protocol(**protocols[run.dataset])}
        if group.kind == "learner":
            options[group.name] = trained(group.options, protocols[run.dataset]["format"])
        elif group.kind == "baseline":
            options[group.name] = baseline(group.policy)
        date = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
        about = {"command": f"offrec {study.kind}", "commit": machine.pop("commit", None), "date": date}
        stamps.append({**about, "machine": machine, "hash": options_hash(options), "options": options})
    return stamps


def options_hash(options: Mapping[str, Option]) -> str:
    """Return a SHA-256 over the resolved options."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


# Resolving options with the current code


def _option(kind: str, given: Mapping[str, Any]) -> Option:
    given = _plain(given)
    return {"kind": kind, "given": given, "resolved": _plain(RESOLVERS[kind](given))}


def _resolve_learner(given: Mapping[str, Any]) -> Mapping[str, Any]:
    from offrec.runs.folder import FREE
    from offrec.runs.options import logging_training, resolve_options

    options = resolve_options(given["settings"], given["format"])
    values = {key: value for key, value in options.settings().items() if key not in FREE}
    needs = options.learner.needs
    if needs.logging not in ("none", "own") or needs.start or needs.min_probability > 0:
        training = asdict(logging_training(options, given["format"]))
        values |= {f"logging_policy.{key}": value for key, value in training.items()}
        values = {key: value for key, value in values.items() if key.replace("logging_policy", "training") not in FREE}
    return values


def _resolve_world(given: Mapping[str, Any]) -> Mapping[str, Any]:
    from offrec.shop import get_world

    return asdict(get_world(given["name"]))


def _resolve_baseline(given: Mapping[str, Any]) -> Mapping[str, Any]:
    from offrec.baselines import BASELINES

    if given["name"] not in BASELINES:
        return {}
    parameters = inspect.signature(BASELINES[given["name"]].build).parameters.values()
    return {one.name: one.default for one in parameters if isinstance(one.default, (int, float, str, tuple))}


def _resolve_protocol(given: Mapping[str, Any]) -> Mapping[str, Any]:
    from offrec.data.protocol import Protocol

    return Protocol.from_json(dict(given)).as_json()


def _resolve_estimate(given: Mapping[str, Any]) -> Mapping[str, Any]:
    from offrec.estimation.decision_values import ValueOptions
    from offrec.models.network import NetworkOptions

    values = asdict(ValueOptions(NetworkOptions()))
    return {**{key: value for key, value in values.items() if not isinstance(value, dict)}, **given}


RESOLVERS: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "learner": _resolve_learner,
    "world": _resolve_world,
    "baseline": _resolve_baseline,
    "protocol": _resolve_protocol,
    "estimate": _resolve_estimate,
    "arguments": lambda given: given,
}


# Reading stamps


def read_stamps(path: Path) -> list[dict[str, Any]]:
    """Return the stamps of a file: its own, those of FILE.stamp.json, or for a picture those of the JSON it shows."""
    stamp_file = path.with_name(path.name + ".stamp.json")
    source = stamp_file if stamp_file.exists() else path.with_suffix(".json") if path.suffix == ".svg" else path
    if source.suffix != ".json" or not source.exists():
        return []
    content = json.loads(source.read_text())
    return content.get("evidence", []) if isinstance(content, dict) else []


def option_changes(stamp: Mapping[str, Any]) -> list[str]:
    """Return what differs between the options of a stamp and those that the current code resolves."""
    changes = []
    for label, option in stamp["options"].items():
        try:
            resolved = _plain(RESOLVERS[option["kind"]](option["given"]))
        except Exception as error:  # an option, learner or world that no longer exists
            changes.append(f"{label}: cannot be resolved any more ({error})")
            continue
        before = option["resolved"]
        for key in sorted({*before, *resolved}):
            old, new = before.get(key, "(none)"), resolved.get(key, "(none)")
            if old != new:
                changes.append(f"{label}: {key} {old} → {new}")
    return changes


def _stamps_of_kept_rows(path: Path, payload: Any) -> list[dict[str, Any]]:
    if not isinstance(payload, list) or not path.exists():
        return []
    rows = read_results(path)
    if not isinstance(rows, list) or not rows or _plain(payload[: len(rows)]) != rows:
        return []
    return read_stamps(path) or [UNSTAMPED_ROWS]


def _identity(stamp: Mapping[str, Any]) -> tuple[Any, ...]:
    return stamp["command"], stamp["commit"], stamp["hash"], json.dumps(stamp.get("machine"), sort_keys=True)


def _publish(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with one line per row, so that differences between two versions are readable."""
    from offrec.data.files import publish_text

    publish_text(path, "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(content[key])}" for key in content) + "\n}\n")


def _lines(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return "[\n" + ",\n".join(json.dumps(one, default=_number) for one in value) + "\n]"
    return json.dumps(value, default=_number)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=_number))


def _number(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else float(value)


def _has_path(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, (list, tuple)) and any(map(_has_path, value)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a table or report in results/")
    parser.add_argument("studies", type=Path, nargs="+", help="the folders of the studies that it shows")
    options = parser.parse_args()
    write_stamp(options.file, options.studies)


if __name__ == "__main__":
    main()
