"""Export a run as an ONNX model, which ONNX Runtime can serve without offrec or torch.

    model.onnx         histories in, the k best items and their scores out; items are indices
    model.ids.json     the item id of index 0, of index 1, …
    model.json         description: fingerprint, options, and the comparison with torch

docs/how-to/export.md explains how to call it.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.data.files import publish_files, remove_leftovers
from offrec.data.json_files import read_json, seal
from offrec.data.regular_files import check_regular
from offrec.data.schema import Anything, Table, Text, Whole
from offrec.errors import InputError, RunError
from offrec.models.agent import Agent
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.folder import read_run
from offrec.serving import served_policy
from offrec.serving.served_policy import ServedPolicy

FILE = Table({"bytes": Whole(), "sha256": Text("[0-9a-f]{64}")})
DESCRIPTION = Table({"files": Table(others=FILE)}, others=Anything())
CHECKED_HISTORIES, CHECKED_K = 256, 20
ONE_FILE_BYTES = 1 << 30  # a protobuf file is limited to 2 GiB, so larger weights are stored in a second file


def export_onnx(run: Path, out: Path, *, force: bool = False, console: Console | None = None) -> dict[str, Any]:
    """Write a run as an ONNX model and check that it ranks as torch does.

    Args:
        run: The run folder.
        out: The file of the model, which ends in .onnx. The other files are written next to it.
        force: Whether existing files are replaced.
        console: Prints the progress; None to print nothing.

    Returns:
        The content of model.json.

    Raises:
        InputError: If the run cannot be exported or the files cannot be written.
        RunError: If ONNX Runtime does not rank as torch does; then nothing is written.
    """
    facts, console = read_run(run), console or Console(quiet=True)
    _check_packages()
    _check_out(out, force)
    served = served_policy.load_policy(out.stem, run, "cpu")
    policy = served.policy
    assert isinstance(policy, NetworkPolicy)
    if not isinstance(policy.agent, Agent):
        raise InputError(f"{run} plans its lists, which ONNX cannot express; serve it with `offrec serve`.")
    _check_backbones(run, policy.agent)
    with publish_files(_files(out), advice="free disk space or choose another --out") as temporary:
        description = _describe(facts, served, out)
        console.line(f"writing {policy.name}, {policy.n_items:,} items")
        description |= _write_model(policy.agent, temporary / out.name, description)
        console.line(f"comparing with torch on {CHECKED_HISTORIES} histories")
        description["agreement"] = _compare_with_torch(policy, temporary / out.name)
        ids = [policy.vocabulary.id(item) for item in range(policy.n_items)]
        _write_json(temporary / description["ids"], ids)
        description["files"] = {file.name: _describe_file(file) for file in sorted(temporary.iterdir())}
        description = seal(description)
        _write_json(temporary / f"{out.stem}.json", description, indent=2)
    return description


def verify_export(out: Path) -> Iterator[str]:
    """Verify the files of an exported model against the checksums in its description.

    Args:
        out: The file of the model, which ends in .onnx.

    Yields:
        What is wrong.
    """
    advice = "export the run again"
    try:
        description = read_json(out.with_suffix(".json"), DESCRIPTION, advice=advice)
    except (InputError, FileNotFoundError) as error:
        yield str(error)
        return
    for name, known in description["files"].items():
        path = out.parent / Path(name).name
        try:
            check_regular(path)
            if path.stat().st_size != known["bytes"] or _describe_file(path) != known:
                yield f"{path} is damaged: its checksum does not match; {advice}."
        except (OSError, ValueError) as error:
            yield f"{path} cannot be read ({error}); {advice}."
    if out.name not in description["files"]:
        yield f"{out.with_suffix('.json')} does not describe {out.name}; {advice}."


def _describe_file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise InputError(f"offrec export needs {error.name}; run pip install 'offrec[onnx]'.") from error


def _check_out(out: Path, force: bool) -> None:
    if out.suffix != ".onnx":
        raise InputError(f"--out must end in .onnx; got {out}.")
    remove_leftovers(out)
    for path in _files(out):
        if path.exists() and not path.is_file():
            raise InputError(f"{path} exists and is not a file; choose another --out.")
        if (path.exists() or path.is_symlink()) and not force:
            raise InputError(f"{path} exists; choose another --out, or replace it with --force.")


def _files(out: Path) -> list[Path]:
    """Return all files of an export, the model last: if it exists, the others exist too."""
    return [out.with_name(f"{out.stem}{suffix}") for suffix in (".ids.json", ".json", ".onnx.data", ".onnx")]


def _check_backbones(run: Path, agent: Agent) -> None:
    for network in filter(None, (agent.actor, agent.critic, agent.prior)):
        record = BACKBONES[network.options.backbone]
        if record.onnx is None:
            others = ", ".join(name for name, other in BACKBONES.items() if other.onnx is not None)
            raise InputError(
                f"{run} has the backbone {record.name}, which has no ONNX writer; train one of {others}, or add a "
                "writer to its record."
            )


def _describe(facts: dict[str, Any], served: ServedPolicy, out: Path) -> dict[str, Any]:
    policy = served.policy
    return {
        "format": "onnx",
        "policy": policy.name,
        "fingerprint": served.fingerprint,
        "dataset_fingerprint": facts["fingerprint"],
        "data_hash": facts["data_hash"],
        "offrec": facts.get("offrec"),
        "n_items": policy.n_items,
        "history_length": policy.history,
        "scores": "softmax(scores) is the policy" if policy.stochastic else "values that define an order only",
        "ids": f"{out.stem}.ids.json",
        "options": facts["options"],
    }


def _write_model(agent: Agent, path: Path, description: dict[str, Any]) -> dict[str, Any]:
    import onnx

    from offrec.backbones.onnx_graph import OPSET
    from offrec.serving.onnx_model import build_model

    keys = ("policy", "fingerprint", "dataset_fingerprint", "n_items", "history_length", "scores", "ids")
    model, weight_bytes = build_model(agent, {key: str(description[key]) for key in keys})
    external = weight_bytes > ONE_FILE_BYTES
    location = f"{path.name}.data" if external else None
    onnx.save_model(model, str(path), save_as_external_data=external, location=location)
    return {"opset": OPSET, "weight_bytes": weight_bytes}


def _compare_with_torch(policy: NetworkPolicy, path: Path) -> dict[str, Any]:
    import onnxruntime

    from offrec.serving.onnx_check import compare, random_histories

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    histories = random_histories(policy.n_items, policy.history, CHECKED_HISTORIES, seed=0)
    agreement = compare(policy, session, histories, CHECKED_K)
    if not agreement.is_sound:
        raise RunError(
            f"ONNX Runtime {onnxruntime.__version__} does not rank as torch does: scores differ by "
            f"{agreement.largest_difference:.2g}. Nothing was written; please report this with the file run.json."
        )
    return agreement.as_json() | {"onnxruntime": onnxruntime.__version__, "torch": str(torch.__version__)}


def _write_json(path: Path, content: Any, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
