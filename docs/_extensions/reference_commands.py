"""The commands page: every command with the arguments that `--help` shows."""

import argparse
import inspect
import re
import warnings

import tyro
from reference_text import escape_cell, prose
from tyro.conf import FlagCreatePairsOff, UseAppendAction

from offrec.cli import commands


def page() -> str:
    """Return one section per command."""
    return "\n\n".join(_section(name, kind) for name, kind in commands().items())


def _section(name: str, kind: type) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(kind, prog=f"offrec {name}", config=(FlagCreatePairsOff, UseAppendAction))
    rows = [_row(action) for action in parser._actions if "--help" not in action.option_strings]
    table = "\n".join(["| argument | default | meaning |", "|---|---|---|", *rows])
    return f"## offrec {name}\n\n{prose(inspect.getdoc(kind) or '')}\n\n{table}"


def _row(action: argparse.Action) -> str:
    flag = ", ".join(action.option_strings)
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar
    text, default = _split_default(str(action.help or ""))
    if not default and (action.required or (not flag and action.nargs is None)):
        default = "required"
    elif default and action.nargs != 0:
        default = f"`{default}`"
    if action.nargs == 0:  # a switch
        default = "off"
    shown = " ".join(part for part in (flag, metavar) if part and action.nargs != 0) or flag
    return f"| `{shown.replace('|', chr(92) + '|')}` | {default.replace('|', chr(92) + '|')} | {escape_cell(text)} |"


def _split_default(text: str) -> tuple[str, str]:
    """Split "Print JSON. (default: False)" into its text and its default."""
    text = " ".join(text.split())
    if match := re.search(r"\(default(?: if used)?: (.*)\)$", text):
        return text[: match.start()].strip(), match[1]
    if text.endswith("(required)"):
        return text.removesuffix("(required)").strip(), "required"
    if match := re.search(r"\(([^()]*)\)$", text):
        hint = match[1]
        if hint in ("repeatable", "optional"):
            return text[: match.start()].strip(), hint
    return text, ""
