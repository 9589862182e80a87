"""The wheel contains everything, and the commands work when it is installed."""

import os
import site
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # Built from a copy: setuptools leaves a build folder in the source, and a second build would read from it.
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source / name)], check=True)
    subprocess.run(["rm", "-rf", *map(str, (source / "src").glob("*.egg-info"))], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def offrec(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; dependencies come from the environment of the tests, offrec does not."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A path in a .pth file is not searched for further .pth files, so an editable install of offrec is not visible.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], check=True)
    return folder / "bin/offrec"


def run(offrec: Path, *arguments: str, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(offrec), *arguments], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "offrec").rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_commands_work_from_the_wheel(offrec: Path, tmp_path: Path) -> None:
    place = run(offrec.with_name("python"), "-c", "import offrec; print(offrec.__file__)", cwd=tmp_path)
    assert "environment" in place  # not the checkout
    run(offrec, "shop", "--world", "tiny", "--sessions", "300", "--out", "log", cwd=tmp_path)
    run(offrec, "prepare", "log/events.parquet", "--out", "data", cwd=tmp_path)
    assert "NDCG@10" in run(offrec, "evaluate", "--baselines", "recent", "--dataset", "data", cwd=tmp_path)


def test_version_is_the_one_of_the_project(offrec: Path, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in run(offrec, "--version", cwd=tmp_path)
