"""Parse the arguments of `offrec compare`, `sweep` and `tune`."""

from collections.abc import Mapping, Sequence
from typing import Any

from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.plugins import Registry, Settings
from offrec.runs.option_text import parse_settings

MAX_SEEDS, LARGEST = 10_000, 2**63 - 1
RUN_OPTIONS = ("seed", "device")  # options of a run that are not part of a policy


def parse_seeds(text: str) -> list[int]:
    """Parse "5" as the seeds 0 to 4, and "0,3" as these two seeds.

    Raises:
        InputError: If the text is neither a number of seeds nor a list of different seeds.
    """
    try:
        seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        seeds = []
    if len(seeds) == 1 and "," not in text:
        seeds = list(range(seeds[0])) if seeds[0] <= MAX_SEEDS else []
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) > LARGEST:
        raise InputError(
            f"--seeds must be a number of seeds (5; at most {MAX_SEEDS:,}) or a list of different seeds (0,3,7); got "
            f"{text!r}."
        )
    return seeds


def parse_names(text: str, registry: Registry[Any]) -> list[str]:
    """Parse names separated by commas, or "all".

    Raises:
        InputError: If the registry does not contain a name.
    """
    names = list(registry) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    return list(dict.fromkeys(registry[name].name for name in names or [text]))


def parse_learner_settings(pairs: Sequence[str], learners: Sequence[str]) -> Mapping[str, Settings]:
    """Parse settings by learner: KEY=VALUE applies to all learners, dc:KEY=VALUE to one.

    Raises:
        InputError: If a pair is malformed or names a learner that is not part of the study.
    """
    settings: dict[str, Settings] = {name: {} for name in learners}
    for pair in sorted(pairs, key=lambda pair: ":" in pair.partition("=")[0]):  # settings of one learner last
        learner, colon, rest = pair.partition(":")
        if not colon or "=" in learner:
            learner, rest = "", pair
        elif learner not in settings:
            raise InputError(
                f"--set {pair} is for the learner {learner!r}, which is not part of this study; its learners are "
                f"{', '.join(settings)}."
            )
        for name in [learner] if learner else settings:
            if not learner and rest.partition("=")[0].strip() in LEARNERS[name].ignored:
                continue  # a setting for all learners reaches those that read it
            settings[name] |= parse_settings([rest])
    return settings


def parse_vary(text: str) -> tuple[str, list[str]]:
    """Parse KEY=VALUE,VALUE… into the option and its values.

    Raises:
        InputError: If the text is malformed or names an option that a sweep cannot vary.
    """
    key, equals, rest = text.partition("=")
    key, values = key.strip(), [value.strip() for value in rest.split(",") if value.strip()]
    if not equals or not values:
        raise InputError(
            f"--vary must have the form KEY=VALUE,VALUE…, for example algorithm.alpha=0.01,0.1,1; got {text}."
        )
    if key in (*RUN_OPTIONS, "algorithm.name", "preset", "network.backbone"):
        raise InputError(f"--vary cannot vary {key}; use `offrec compare` for learners, backbones and seeds.")
    return key, list(dict.fromkeys(values))
