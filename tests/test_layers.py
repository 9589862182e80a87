"""An import against the way of the data is a bug."""

import ast
from pathlib import Path

ORDER = [
    "errors", "types", "console", "plugins", "data", "catalogue", "losses", "algorithms", "backbones", "policy",
    "models", "baselines", "shop", "training", "evaluation", "logging_policy", "estimation", "runs", "studies",
    "reports", "serving", "commands", "cli", "__main__",
]  # fmt: skip
SOURCE = Path(__file__).parent.parent / "src" / "offrec"
BARE = {"torch", "numpy", "safetensors"}  # all that a GPU image has


def imports(path: Path, top_level_only: bool = False) -> list[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_room_has_its_place() -> None:
    rooms = {room(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(ORDER)


def test_no_import_against_the_arrow() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        here = room(path)
        for name in imports(path):
            parts = name.split(".")
            ours = here != "__init__" and parts[0] == "offrec" and parts[1] in ORDER
            if ours and ORDER.index(parts[1]) > ORDER.index(here):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_training_needs_torch_numpy_and_safetensors_only() -> None:
    """Follows the imports of `python -m offrec.runs` as Python would, and looks at what else they name."""
    import sys

    todo, seen, foreign = [SOURCE / "runs" / "__main__.py"], set(), set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imports(path, top_level_only=True):
            parts = name.split(".")
            if parts[0] != "offrec":
                if parts[0] not in sys.stdlib_module_names:
                    foreign.add(parts[0])
                continue
            for end in range(1, len(parts) + 1):
                base = SOURCE.joinpath(*parts[1:end])
                todo += [file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()]
    assert SOURCE / "training" / "loop.py" in seen
    assert foreign == BARE


def test_preparing_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, offrec.cli, offrec.data.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
