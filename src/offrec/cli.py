"""The command line: parse the commands and `--version`, and print errors."""

import math
import re
import sys
from dataclasses import fields, is_dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any

from offrec.errors import InputError, exit_code

LARGEST, LARGEST_SEED = 2**31 - 1, 2**63 - 1
WHOLE = re.compile(r"[+-]?\d{1,20}(\.\d{0,20})?[eE]\+?\d{1,2}")  # int(1e999999999) would not end


def main() -> None:
    """Run the command in sys.argv; `offrec.errors.exit_code` lists the exit codes."""
    if code := exit_code(_run):
        sys.exit(code)


def _run() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from offrec.runs.version import offrec_version

        print(f"offrec {offrec_version()}")
    else:
        _command().run()


def commands() -> dict[str, type]:
    """Return the class of every command by its name, in the order of `offrec --help`."""
    # Imported here, so that `main` also handles Ctrl-C during the imports.
    from offrec.commands.ab import Ab
    from offrec.commands.demo import Demo
    from offrec.commands.erase import Erase
    from offrec.commands.estimate import Estimate
    from offrec.commands.evaluate import Evaluate
    from offrec.commands.export import Export
    from offrec.commands.options import Options
    from offrec.commands.prepare import Prepare
    from offrec.commands.recommend import Recommend
    from offrec.commands.rounds import Rounds
    from offrec.commands.serve import Serve
    from offrec.commands.shop import WriteShop
    from offrec.commands.simulate import Simulate
    from offrec.commands.size import Size
    from offrec.commands.studies import Compare, Report, Sweep, Tune
    from offrec.commands.train import Train
    from offrec.commands.verify import Verify

    return {
        "prepare": Prepare,
        "train": Train,
        "evaluate": Evaluate,
        "estimate": Estimate,
        "recommend": Recommend,
        "serve": Serve,
        "ab": Ab,
        "erase": Erase,
        "export": Export,
        "shop": WriteShop,
        "simulate": Simulate,
        "rounds": Rounds,
        "compare": Compare,
        "sweep": Sweep,
        "tune": Tune,
        "report": Report,
        "options": Options,
        "size": Size,
        "verify": Verify,
        "demo": Demo,
    }


def _command() -> Any:
    """Parse the command line and return the command to run."""
    import tyro

    from offrec.commands.argument_errors import parse_or_refuse

    known = commands()
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    is_flag = first.startswith("-")
    if not first or (is_flag and first not in ("-h", "--help") and not first.startswith("--tyro-")):
        found = f"Expected a command; got {first}" if is_flag else "No command was given"
        raise InputError(f"{found}; the commands are {', '.join(known)}. `offrec --help` describes them.")
    if not first.startswith("-") and first not in known:
        near = get_close_matches(first, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise InputError(f"There is no command {first!r}{hint} Known: {', '.join(known)}.")
    union: Any = None
    for name, kind in known.items():
        one = Annotated[kind, tyro.conf.subcommand(name)]  # type: ignore[valid-type]
        union = one if union is None else union | one

    def parse() -> Any:
        return tyro.cli(
            union,
            prog="offrec",
            description="Learn recommendation policies offline from logged sessions. --version prints the version.",
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction),
            registry=_number_formats(),
            return_unknown_args=True,
        )

    command, unknown = parse_or_refuse(parse)
    if unknown:
        raise InputError(_unknown_argument(command, unknown))
    _check_numbers(command)
    return command


def _number_formats() -> Any:
    """Return rules by which 1e6 is a whole number too."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: parse_whole(words[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def parse_whole(text: str) -> int:
    """Parse a whole number, also one such as 1e6.

    Raises:
        ValueError: If the text is not a whole number.
    """
    try:
        return int(text)
    except ValueError:
        number = Decimal(text) if WHOLE.fullmatch(text) else Decimal("NaN")
        if not number.is_finite() or number != number.to_integral_value():
            raise ValueError(f"expected a whole number, such as 1000000 or 1e6; got {text!r}") from None
        return int(number)


def _check_numbers(command: Any) -> None:
    """Refuse numbers that no computation can use: they would fail later, or never end."""
    for one in fields(command):
        value, flag = getattr(command, one.name), f"--{one.name.strip('_').replace('_', '-')}"
        if is_dataclass(value):
            _check_numbers(value)
        for number in value if isinstance(value, tuple) else (value,):
            largest = LARGEST_SEED if "seed" in one.name else LARGEST
            if isinstance(number, int) and not isinstance(number, bool) and abs(number) > largest:
                raise InputError(f"{flag} must be at most {largest:,}; got {number}.")
            if isinstance(number, float) and math.isnan(number):
                raise InputError(f"{flag} must be a number; got {number}.")


def _unknown_argument(command: Any, words: list[str]) -> str:
    """Return the message for a flag that the command does not have, with the nearest flag or option."""
    flag, equals, value = words[0].partition("=")
    if not flag.startswith("-"):
        return f"Unexpected argument {flag!r}; `offrec {_name(command)} --help` lists the arguments."
    if not equals and len(words) > 1 and not words[1].startswith("-"):
        value = words[1]
    name = flag.lstrip("-")
    advice = f"`offrec {_name(command)} --help` lists all flags"
    if near := get_close_matches(name, _flags(command), n=1, cutoff=0.75):
        return f"There is no flag {flag}; did you mean --{near[0]}? {advice}."
    if hasattr(command, "set"):
        from offrec.algorithms import LEARNERS
        from offrec.runs.option_errors import nearest_options
        from offrec.runs.options import option_names

        algorithm = str(getattr(command, "algorithm", None))
        known = option_names(algorithm if algorithm in LEARNERS else "sl")
        if options := nearest_options(name.replace("-", "_"), known):
            return f"There is no flag {flag}; did you mean --set {options[0]}={value or 'VALUE'}? {advice}."
    return f"There is no flag {flag}; {advice}."


def _name(command: Any) -> str:
    return next(name for name, kind in commands().items() if isinstance(command, kind))


def _flags(command: Any) -> list[str]:
    """Return the names of a command's flags; groups of flags are nested dataclasses."""
    names: list[str] = []
    for one in fields(command):
        value = getattr(command, one.name)
        names += _flags(value) if is_dataclass(value) else [one.name.strip("_").replace("_", "-")]
    return names
