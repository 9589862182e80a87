"""The presets: default settings of every run. Learners and backbones add their own in their records."""

from dataclasses import dataclass, field

from offrec.plugins import Registry, Settings


@dataclass(frozen=True)
class Preset:
    """A named set of defaults.

    Args:
        name: The name after `--preset`.
        backbone: The default backbone.
        settings: Settings of every run, under dotted keys.
        learning_rates: Learning rates for the datasets of a raw format.
    """

    name: str
    backbone: str
    settings: Settings = field(default_factory=dict)
    learning_rates: dict[str, float] = field(default_factory=dict)


PRESETS: Registry[Preset] = Registry("preset", Preset)
PRESETS.register(Preset("strong", "gru"))  # the defaults of the options themselves
# The settings of Xin et al. 2020, which the paper's figures imply. Their learning rate differs between the datasets.
PRESETS.register(
    Preset(
        "paper",
        "cfn",
        {
            "network.width": 64,
            "network.history": 10,
            "network.dropout": 0.0,
            "network.tied": False,
            "network.repeat": "off",
            "network.layers": 1,
            "training.encode": "windows",
            "training.batch_size": 256,
            "training.learning_rate": 0.005,
            "training.decay": 1.0,
            "training.warmup": 0,
            "gamma": 0.5,
            "reward_unit": "absolute",
            "critic.ground": 0,
            "critic.repeat": "off",
        },
        {"yoochoose": 0.01, "retailrocket": 0.005},
    )
)
