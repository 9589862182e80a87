"""What the pages say exists: links, commands, flags, options and functions."""

import re
import warnings
from pathlib import Path

import pytest
import tyro

from offrec import losses
from offrec.algorithms import LEARNERS
from offrec.cli import commands
from offrec.runs import options

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*/**/*.md"),
        *(ROOT / "docs").glob("[ig]*.md"),
        ROOT / "results/README.md",
    ]
)
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^( *)```\w*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def command_lines(text: str) -> list[str]:
    """Return the offrec commands of the page's code blocks, continued lines joined and comments removed."""
    blocks = [block for _, block in BLOCK.findall(text)]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s#.*", "", line).strip() for line in lines if re.match(r"\s*offrec [a-z]", line)]


def flags(command: str) -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(
            commands()[command], config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction)
        )
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_to_files_resolve(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if not re.match(r"https?://|#|mailto:", target):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_and_flags_exist(page: Path) -> None:
    for line in command_lines(page.read_text()):
        name = line.split()[1]
        assert name in commands(), line
        used = re.findall(r"(?<!\S)(--?[a-zA-Z][\w-]*)", line)
        assert set(used) <= flags(name), line


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_options_in_commands_exist(page: Path) -> None:
    known = {key for learner in LEARNERS for key in options.option_names(learner)}
    for line in command_lines(page.read_text()):
        for key in re.findall(r"--(?:set|vary) (?:[a-z+]+:)?([\w.]+)=", line):
            assert key in known or key.startswith("reward."), line


def test_functions_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`losses\.(\w+)`(?<!py`)", page.read_text())}
    assert named
    assert [name for name in sorted(named) if not hasattr(losses, name)] == []


def test_files_that_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|benchmarks|docs)/[\w/.-]+\.(?:py|md|json))`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
