"""`offrec rounds`: serve, log and train repeatedly in a simulated shop."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from offrec.commands.printing import console_for, print_json, print_table, registered


@dataclass(frozen=True)
class Rounds:
    """Serve, log and train in rounds in a simulated shop, and compare ways of exploring.

    In round 0, the shop's logging policy writes a log and the first policy is trained. In each later round, the last
    policy serves new visitors and explores, and the next policy is trained on the logs. The folder gets a table and a
    picture: what is earned while serving, and what each trained policy earns. Repeat the command to continue.

    Example: offrec rounds --world demo --seed 10 --rounds 3 --explore never,blend:0.1 --out rounds
    """

    out: Path
    """The folder of the rounds."""
    world: Annotated[str, registered("world", "The world of the shop; by default demo. One of")] = "demo"
    seed: int = 0
    """The seed of the shop."""
    sessions: int = 20_000
    """The number of visitors per round."""
    rounds: int = 3
    """The number of rounds that trained policies serve, after the round of the logging policy."""
    explore: Annotated[str, tyro.conf.arg(metavar="WAYS")] = "never,blend"
    """Ways of exploring, separated by commas. `never`: the best k items. `blend:SHARE`: a share of the lists comes from
    the logging policy. `blend-last:SHARE`: a share comes from the policy of the round before. `places:N`: N random
    places are sampled from the catalogue. `policy-places:N`: they are sampled from the policy's probabilities.
    `sample:TEMPERATURE`: the list is sampled from the policy's probabilities. Without a number, the default is .1 for
    blends and 1 for the others."""
    algorithm: Annotated[str, registered("learner", "The learner; by default user-model. One of")] = "user-model"
    set: tuple[str, ...] = ()
    """An option of the learner, such as training.epochs=3. Can be repeated."""
    train_on: Literal["served", "all", "newest"] = "served"
    """After round 0, train on all logs that trained policies wrote (`served`), also on the log of the logging policy
    (`all`), or on the newest log."""
    fresh: bool = False
    """Train each policy from new weights instead of starting from the last policy."""
    visitors: int = 4000
    """New visitors that measure what a trained policy earns."""
    informed_visitors: int = 1000
    """How many of these visitors the shop's policy `informed` serves, which is slow; 0 leaves it out."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.errors import InputError
        from offrec.rounds import RoundsOptions, run_rounds
        from offrec.rounds.picture import draw_rounds
        from offrec.rounds.tables import rounds_table
        from offrec.runs.option_text import parse_settings

        if self.rounds < 1:  # the table and the picture show what rounds change
            raise InputError(f"--rounds must be at least 1; got {self.rounds}.")
        options = RoundsOptions(
            world=self.world,
            seed=self.seed,
            sessions=self.sessions,
            rounds=self.rounds,
            explore=tuple(part for part in self.explore.split(",") if part),
            algorithm=self.algorithm,
            settings=parse_settings(self.set),
            train_on=self.train_on,
            warm_start=not self.fresh,
            visitors=self.visitors,
            informed_visitors=self.informed_visitors,
            device=self.device,
        )
        console = console_for(self.json)
        results = run_rounds(options, self.out, console)
        pictures = [self.out / "rounds.svg", self.out / "rounds.png"]
        draw_rounds(results, pictures)
        if self.json:
            print_json({"out": str(self.out), **results.as_json()})
            return
        print_table(*rounds_table(results))
        console.line(f"Pictures: {', '.join(map(str, pictures))}")
