"""What a process imports before it trains."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules["torch._dynamo"] = None  # importing it fails, and the traceback shows who imports it
import offrec
from pathlib import Path
import torch
from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.runs.options import resolve_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from small_datasets import write_dataset

folder = Path(sys.argv[1])
dataset = write_dataset(folder, [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(30)], splits=(20, 5, 5), items=9)
small = {"network.width": 4, "network.history": 6, "training.epochs": 1}
named = [{"algorithm.name": name, **small} for name in LEARNERS if name != "user-model"]
named += [{"network.backbone": name, **small} for name in BACKBONES] + [{"algorithm.name": "user-model"}]
for settings in named:
    plan_run(SharedData(dataset), resolve_options(settings, dataset.protocol.format), torch.device("cpu"))
offrec.train(dataset, folder / "run", settings=small, console=Console(quiet=True))
"""


def test_planning_and_training_do_not_import_dynamo(tmp_path: Path) -> None:
    """torch._dynamo takes seconds to import and compiles nothing here."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tests)!r})\n{PROGRAM}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
