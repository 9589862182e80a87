"""The tensors that a checkpoint must contain are known without building the network or importing torch's compiler."""

import subprocess
import sys

CODE = """
import sys
from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.models.log_shape import LogShape
from offrec.runs.loading import _expected_tensors, _untrained_agent
from offrec.runs.options import resolve_options

cases = [{"algorithm.name": name} for name in LEARNERS]
cases += [{"algorithm.name": "sdac", "network.backbone": name} for name in BACKBONES]
for settings in cases:
    is_user_model = settings["algorithm.name"] == "user-model"
    options = resolve_options(settings, "decisions" if is_user_model else "events")
    arguments = (10, options, LogShape(2, 5))
    state = _untrained_agent(*arguments).state_dict()
    real = {f"module.{name}": (tuple(one.shape), one.dtype) for name, one in state.items()}
    assert _expected_tensors(*arguments) == real, settings
    assert "torch._dynamo" not in sys.modules, settings
print("checked")
"""


def test_expected_tensors_are_those_of_the_network_and_cheap() -> None:
    """The compiler would take seconds and 140 MB in every process that loads a run."""
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert result.stdout == "checked\n", result.stderr
