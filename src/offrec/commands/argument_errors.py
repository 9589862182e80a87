"""Turn the boxes in which tyro reports wrong arguments into one sentence."""

import io
import os
import re
from ast import literal_eval
from collections.abc import Callable
from contextlib import redirect_stderr
from difflib import get_close_matches
from textwrap import dedent
from typing import Any
from unittest import mock

from offrec.errors import InputError

WIDE = "5000"  # columns of a terminal on which no sentence is wrapped
BORDERS = "╭╮╰╯│+|"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RULE = re.compile(r"[ ─-]*")
COMMAND = re.compile(r"(offrec[a-z -]*?) --help$", re.MULTILINE)
CHOICE = re.compile(r"invalid choice '(.*)' for argument '(.*?)'\. Expected one of (\(.*\))\.")
MISSING = re.compile(r"Missing value for argument '(.*?)'")
VALUE = re.compile(r"Error parsing (.*?): (.*)")
KIND = re.compile(r"- <class '(?:int|float)'>: (.*)")
FLOAT = re.compile(r"could not convert string to float: (.*)")


def parse_or_refuse(parse: Callable[[], Any]) -> Any:
    """Return what `parse` returns; if it ends the process with a box on standard error, raise InputError instead.

    Args:
        parse: Parses the command line. It is called again after an error, to get the box without wrapped lines.
    """
    try:
        with redirect_stderr(io.StringIO()):
            return parse()
    except SystemExit as ended:
        if not ended.code:  # after --help
            raise
    box = io.StringIO()
    with redirect_stderr(box), mock.patch.dict(os.environ, COLUMNS=WIDE):
        try:
            return parse()
        except SystemExit:
            pass
    raise InputError(describe_box(box.getvalue()))


def describe_box(box: str) -> str:
    """Return one sentence that says what a box says."""
    lines = [line.strip(BORDERS).rstrip() for line in COLOURS.sub("", box).splitlines()]
    text = dedent("\n".join([line for line in lines if not RULE.fullmatch(line)][1:]))  # without the title
    named = COMMAND.search(text)
    command = "offrec" if named is None else named[1]
    advice = f"`{command} --help` describes the arguments."
    if choice := CHOICE.search(text):
        return _describe_choice(*choice.groups())
    if value := MISSING.search(text):
        argument = value[1]
        return (
            f"{argument} needs a value; {advice}" if argument[0] == "-" else f"{argument.upper()} is missing; {advice}"
        )
    if value := VALUE.search(text):
        flag, reason = value[1].partition("/")[0], value[2]
        reason = next((match[1] for match in KIND.finditer(text)), reason)
        reason = FLOAT.sub(r"expected a number; got \1", reason)
        return f"{flag}: {reason.rstrip('.')}."
    text, _, unrecognized = text.partition("Unrecognized options:")
    if unrecognized:
        words = unrecognized.partition("For full helptext")[0].split()
        return f"{command} does not know {' '.join(dict.fromkeys(words))}; {advice}"
    if "Missing from" in text:
        arguments = [
            line.strip() for line in text.splitlines() if line.startswith("    ") and not line.startswith("     ")
        ]
        arguments = [one for one in arguments if not one.endswith(" --help")]
        return f"{command} needs {' and '.join(arguments)}; {advice}"
    return f"The arguments cannot be read ({' '.join(text.split())}); {advice}"


def _describe_choice(value: str, flag: str, listed: str) -> str:
    choices = [str(one) for one in literal_eval(listed)]
    if "None" in choices:  # an optional flag, whose choices come in any order
        choices = sorted(one for one in choices if one != "None")
    near = get_close_matches(value, choices, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{flag} must be one of {', '.join(choices)}; got {value!r}{hint}"
