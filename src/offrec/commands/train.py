"""`offrec train`."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from offrec.commands.engines import RayOptions
from offrec.commands.printing import registered, unset
from offrec.console import Console
from offrec.errors import InputError, RunError


@dataclass(frozen=True)
class Train:
    """Train a policy on a dataset. Ctrl-C saves the run; --resume continues it exactly where it stopped.

    Example: offrec train data/retailrocket --backbone gru --out runs/sl --set training.epochs=10
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Dataset folder written by `offrec prepare`."""
    out: Path
    """Run folder: options, metrics.jsonl, best and last checkpoint."""
    algorithm: Annotated[str | None, registered("learner", "The learner; by default sl. One of")] = None
    backbone: Annotated[
        str | None, registered("backbone", "The backbone; by default gru, with --preset paper cfn. One of")
    ] = None
    preset: Annotated[Literal["strong", "paper"] | None, unset("strong|paper")] = None
    """`strong` (the default) works well on most logs; `paper` uses the paper's settings (those of Xin et al. 2020)."""
    select: Annotated[Literal["ndcg", "reward", "value", "last"] | None, unset("ndcg|reward|value|last")] = None
    """Which checkpoint to keep: the one with the best validation NDCG@10, the best reward@10 (hits weighted by reward),
    the best value@5 (estimated value), or the last. The default depends on the learner."""
    config: Annotated[Path | None, unset("FILE")] = None
    """A TOML file with options of the run, such as the run.toml of another run. Flags and --set override it."""
    set: tuple[str, ...] = ()
    """An option by its dotted key; can be repeated: --set training.epochs=3 --set reward.cart=2. `offrec options
    --algorithm NAME` lists the options."""
    seed: Annotated[int | None, unset("INT")] = None
    """Seed of weights, batches and dropout; by default 0."""
    seeds: Annotated[str | None, unset("INTS")] = None
    """Several seeds, separated by commas. They are trained concurrently on one device, in --out/seed-0, …"""
    device: Annotated[str | None, unset("DEVICE")] = None
    """auto (the default), cpu, cuda, cuda:1, …"""
    from_: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")] = None
    """Start from the weights of this run instead of random ones; items are matched by id. Options that are not given
    are those of the run, with a shorter schedule."""
    logging_policy: Annotated[Path | None, unset("RUN")] = None
    """An SL run on the same dataset, with the same network, that serves as the logging policy instead of a new fit."""
    catalogue_ranks: Annotated[int | None, unset("INT")] = None
    """With torchrun: the number of processes that together store the item tables; by default all. Their number must
    divide that of all processes. The remaining factor is the number of groups that read different sessions."""
    launch: Annotated[Literal["ray"] | None, unset("ray")] = None
    """Train by several processes on a Ray cluster, whose machines have the folders of the dataset and of the run."""
    ranks: Annotated[int | None, unset("INT")] = None
    """With --launch: the number of processes."""
    max_restarts: int = 0
    """With --launch: how often to start the processes again from the last checkpoint after one of them has died."""
    ray: Annotated[RayOptions, tyro.conf.arg(name="")] = field(default_factory=RayOptions)
    resume: bool = False
    """Continue the run in --out."""
    force: bool = False
    """Replace the run in --out when the training has finished. Until then the old run stays in its place."""
    track: tuple[Literal["auto", "tensorboard", "wandb", "mlflow", "none"], ...] = ()
    """Where to send the figures of each epoch, in addition to metrics.jsonl; can be repeated. auto (the default):
    TensorBoard, if it is installed; view it with tensorboard --logdir RUNS."""

    def run(self) -> None:
        settings, console = self._settings(), Console()
        if "TORCHELASTIC_RUN_ID" in os.environ:
            self._run_ranked(settings)
            return
        if self.launch is not None:
            self._launch(settings, console)
            return
        for flag, value in (("--ranks", self.ranks), ("--max-restarts", self.max_restarts or None)):
            if value is not None:
                raise InputError(f"{flag} needs --launch ray; add it or omit {flag}.")
        self.ray.check_unused("--launch")
        if self.catalogue_ranks is not None:
            raise InputError(
                "--catalogue-ranks needs several processes; start them with torchrun -m offrec train, or --launch ray."
            )
        from offrec.runs.train import train, train_many

        if self.seeds is None:
            train(
                self.dataset,
                self.out,
                settings=settings,
                start_from=self.from_,
                logging_policy=self.logging_policy,
                resume=self.resume,
                force=self.force,
                track=self.track,
                console=console,
            )
            console.line(f"Next: offrec evaluate {self.out}")
            return
        if "seed" in settings:
            raise InputError("--seeds sets the seeds; remove --seed, and seed from --set and --config.")
        if self.logging_policy is not None:
            raise InputError("--logging-policy serves one seed, but --seeds was given; use --seed.")
        runs = {f"seed-{seed}": {**settings, "seed": seed} for seed in self._seeds(self.seeds)}
        policies = train_many(
            self.dataset,
            runs,
            self.out,
            start_from=self.from_,
            resume=self.resume,
            force=self.force,
            track=self.track,
            console=console,
        )
        if len(policies) < len(runs):
            raise RunError(f"{len(runs) - len(policies)} of {len(runs)} runs failed.")
        console.line(f"Next: offrec evaluate {self.out}/{next(iter(runs))}")

    def _run_ranked(self, settings: dict[str, Any]) -> None:
        """Train the run by the processes that torchrun started."""
        from offrec.runs.launch import train_ranked

        unsupported = self._unsupported() | {"--launch": self.launch}
        refused = next((flag for flag, value in unsupported.items() if value is not None), None)
        train_ranked(
            self.dataset,
            self.out,
            settings=settings,
            catalogue_ranks=self.catalogue_ranks,
            resume=self.resume,
            force=self.force,
            track=self.track,
            refused=refused,
        )

    def _unsupported(self) -> dict[str, Any]:
        return {"--seeds": self.seeds, "--from": self.from_, "--logging-policy": self.logging_policy}

    def _launch(self, settings: dict[str, Any], console: Console) -> None:
        """Train the run by processes on a Ray cluster."""
        from offrec.scale.ray_launch import RayLauncher

        for flag, value in self._unsupported().items():
            if value is not None:
                raise InputError(f"{flag} cannot be used by several processes; leave it out, or omit --launch.")
        if self.ranks is None:
            raise InputError("--launch ray needs --ranks N, the number of processes; add it.")
        if self.max_restarts < 0:
            raise InputError(f"--max-restarts must be at least 0; got {self.max_restarts}.")
        options = self.ray
        launcher = RayLauncher(self.ranks, options.ray_address, cpus=options.ray_cpus, gpus=options.ray_gpus)
        arguments = {
            "dataset": str(self.dataset.resolve()),
            "out": str(self.out.resolve()),
            "settings": settings,
            "catalogue_ranks": self.catalogue_ranks,
            "resume": self.resume,
            "force": self.force,
            "track": self.track,
        }
        launcher.train(arguments, console, self.max_restarts)

    def _settings(self) -> dict[str, Any]:
        """Return all options under dotted keys: those of the file, overridden by --set and flags, which must agree."""
        from offrec.runs.option_errors import merge_flags
        from offrec.runs.option_text import parse_settings, read_toml

        file = read_toml(self.config) if self.config else {}
        file = {key: value for key, value in file.items() if key not in ("dataset", "out", "from")}
        if self.preset is not None and file.get("preset", self.preset) != self.preset:
            # The file may contain every option of a run, so another preset would change nothing.
            raise InputError(f"--preset is {self.preset}, but {self.config} has preset {file['preset']}; leave it out.")
        flags = {
            "--algorithm": ("algorithm.name", self.algorithm),
            "--backbone": ("network.backbone", self.backbone),
            "--preset": ("preset", self.preset),
            "--select": ("select", self.select),
            "--seed": ("seed", self.seed),
            "--device": ("device", self.device),
        }
        return {**file, **merge_flags(flags, parse_settings(self.set))}

    @staticmethod
    def _seeds(text: str) -> list[int]:
        try:
            seeds = [int(part) for part in text.split(",")]
        except ValueError:
            seeds = []
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"--seeds must be distinct integers, such as 0,1,2; got {text!r}.")
        return seeds
