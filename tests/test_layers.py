"""Imports follow the direction of the data flow, and the training path needs few packages."""

import ast
import subprocess
import sys
from pathlib import Path

ORDER = [
    "errors", "types", "console", "plugins", "data", "scale", "catalogue", "losses", "algorithms", "backbones",
    "policy", "models", "baselines", "shop", "training", "evaluation", "logging_policy", "estimation", "runs",
    "studies", "reports", "rounds", "serving", "commands", "cli", "__main__",
]  # fmt: skip
SOURCE = Path(__file__).parent.parent / "src" / "offrec"
TRAINING_PACKAGES = {"torch", "numpy", "safetensors"}  # what a minimal GPU image provides


def imported_names(path: Path, top_level_only: bool = False) -> list[str]:
    """The modules and names that a file imports."""
    tree = ast.parse(path.read_text())
    names: list[str] = []
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def layer(path: Path) -> str:
    """The package or module at the top level that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_package_has_a_layer() -> None:
    assert {layer(path) for path in SOURCE.rglob("*.py")} - {"__init__"} == set(ORDER)


def test_at_most_nine_modules_are_at_the_top_level() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 9


def test_no_module_imports_a_later_layer() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        for name in imported_names(path):
            parts = name.split(".")
            is_ours = layer(path) != "__init__" and parts[0] == "offrec" and parts[1] in ORDER
            if is_ours and ORDER.index(parts[1]) > ORDER.index(layer(path)):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_training_needs_torch_numpy_and_safetensors_only() -> None:
    """Follow the imports of `python -m offrec.runs` as Python does, and collect the other packages they name."""
    todo, seen, packages = [SOURCE / "runs" / "__main__.py"], set(), set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imported_names(path, top_level_only=True):
            parts = name.split(".")
            if parts[0] != "offrec":
                packages |= {parts[0]} - set(sys.stdlib_module_names)
                continue
            for end in range(1, len(parts) + 1):
                base = SOURCE.joinpath(*parts[1:end])
                todo += [file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()]
    assert SOURCE / "training" / "loop.py" in seen
    assert packages == TRAINING_PACKAGES


def test_preparing_needs_no_torch() -> None:
    code = "import sys, offrec.cli, offrec.data.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
