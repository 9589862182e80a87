"""The commands page: every command with the arguments that `--help` shows."""

import argparse
import inspect
import re
import warnings

import tyro
from reference_text import escape_cell, prose, table
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
    arguments = table(["argument", "default", "meaning"], rows)
    return f"## offrec {name}\n\n{prose(inspect.getdoc(kind) or '')}\n\n{arguments}"


def _row(action: argparse.Action) -> str:
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or ""
    metavar = metavar.replace("{None}|", "")
    text, default = _split_default(str(action.help or ""))
    flag = ", ".join(action.option_strings)
    if action.nargs == 0 and flag:  # a switch
        shown, default = flag, "off"
    else:
        shown = f"{flag} {metavar}".strip()
    if default == "required" or action.required or (not flag and not default and action.nargs in (None, "+")):
        default = "required"
    elif default not in ("", "off"):
        default = f"`{_cell(default)}`"
    return f"| `{_cell(shown)}` | {default} | {escape_cell(text)} |"


def _cell(code: str) -> str:
    return code.replace("|", "\\|")


def _split_default(text: str) -> tuple[str, str]:
    """Split "Print JSON. (default: False)" into its text and its default."""
    text = " ".join(text.split())
    if match := re.search(r"\((default|required|repeatable)(?:: ((?:[^()]|\([^()]*\))*))?\)$", text):
        default = match[2] or {"required": "required"}.get(match[1], "")
        return text[: match.start()].strip(), "" if default in ("None", "''") else default
    return text, ""
