"""A run as a file that needs neither offrec nor torch: `offrec export RUN --format onnx --out model.onnx`.

    model.onnx         histories in, the best k items and their scores out; indices stand for items
    model.ids.json     [the log's own id of item 0, of item 1, …]
    model.json         what it is: fingerprint, options, how it was compared with torch

docs/export.md says how to call it.
"""

import json
from pathlib import Path
from typing import Any

import torch

from offrec.console import Console
from offrec.data.files import publish_files
from offrec.errors import InputError, RunError
from offrec.models.agent import Agent
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.folder import read_run
from offrec.serving import served_policy
from offrec.serving.served_policy import ServedPolicy

CHECKED_HISTORIES, CHECKED_K = 256, 20
IN_ONE_FILE = 1 << 30  # bytes of weights; a protobuf holds no more than 2 GiB, so beyond this they stand beside it


def export_onnx(run: Path, out: Path, *, force: bool = False, console: Console | None = None) -> dict[str, Any]:
    """What stands in model.json."""
    facts, console = read_run(run), console or Console(quiet=True)
    _check(out, force)
    served = served_policy.load_policy(out.stem, run, "cpu")
    policy = served.policy
    assert isinstance(policy, NetworkPolicy)
    _exportable(run, policy.agent)
    with publish_files(_files(out), advice="free disk space or choose another --out") as temporary:
        meta = _describe(facts, served, out)
        console.line(f"writing {policy.name}, {policy.n_items:,} items")
        meta |= _write_model(policy.agent, temporary / out.name, meta)
        console.line(f"comparing it with torch on {CHECKED_HISTORIES} histories")
        meta["agreement"] = _compared(policy, temporary / out.name)
        ids = [policy.vocabulary.id(item) for item in range(policy.n_items)]
        (temporary / meta["ids"]).write_text(json.dumps(ids, ensure_ascii=False) + "\n", encoding="utf-8")
        (temporary / f"{out.stem}.json").write_text(
            json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return meta


def _check(out: Path, force: bool) -> None:
    _need_onnx()
    if out.suffix != ".onnx":
        raise InputError(f"--out is {out}; give a file that ends in .onnx.")
    there = next((path for path in _files(out) if path.exists() or path.is_symlink()), None)
    if there is not None and not there.is_file():
        raise InputError(f"{there} exists and is no file; choose another --out.")
    if there is not None and not force:
        raise InputError(f"{there} exists already; choose another --out, or replace it with --force.")


def _files(out: Path) -> list[Path]:
    """All that an export may leave, the model last: where it is, the others are."""
    return [out.with_name(f"{out.stem}{end}") for end in (".ids.json", ".json", ".onnx.data", ".onnx")]


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"Exporting needs {error.name}, which is not installed: pip install 'offrec[onnx]'."
        ) from error


def _exportable(run: Path, agent: Agent) -> None:
    from offrec.serving.onnx_backbones import BACKBONES

    for network in filter(None, (agent.actor, agent.critic, agent.prior)):
        if type(network.backbone) not in BACKBONES:
            raise InputError(
                f"{run} has the backbone {network.options.backbone}, which cannot be written as ONNX; train one of "
                f"{', '.join(sorted(kind.__name__.lower() for kind in BACKBONES))}."
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
        "items": policy.n_items,
        "history": policy.history,
        "scores": "softmax(scores) is the policy" if policy.stochastic else "values; they say an order only",
        "ids": f"{out.stem}.ids.json",
        "options": facts["options"],
    }


def _write_model(agent: Agent, path: Path, meta: dict[str, Any]) -> dict[str, Any]:
    import onnx

    from offrec.serving.onnx_graph import OPSET
    from offrec.serving.onnx_model import build

    props = {
        key: str(meta[key])
        for key in ("policy", "fingerprint", "dataset_fingerprint", "items", "history", "scores", "ids")
    }
    model, size = build(agent, props)
    beside = size > IN_ONE_FILE
    onnx.save_model(model, str(path), save_as_external_data=beside, location=f"{path.name}.data" if beside else None)
    return {"opset": OPSET, "bytes_of_weights": size}


def _compared(policy: NetworkPolicy, path: Path) -> dict[str, Any]:
    import onnxruntime

    from offrec.serving.onnx_check import compare, made_up

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = compare(policy, session, made_up(policy.n_items, policy.history, CHECKED_HISTORIES, seed=0), CHECKED_K)
    if not found.sound:
        raise RunError(
            f"ONNX Runtime {onnxruntime.__version__} does not rank as torch does (scores differ by "
            f"{found.largest_difference:.2g}), so nothing was written; please report it with the run's run.json."
        )
    return found.as_json() | {"onnxruntime": onnxruntime.__version__, "torch": str(torch.__version__)}
