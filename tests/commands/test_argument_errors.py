"""Arguments that cannot be parsed are refused with one sentence."""

import pytest
from typed_commands import offrec_here, sentence

from offrec.commands.argument_errors import describe_box


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "simulate --policy orcle",
            "--policy must be one of logging, greedy, oracle, random, informed; got 'orcle'; did you mean oracle?",
        ),
        ("train data --out x --preset wild", "--preset must be one of paper, strong; got 'wild'."),
        ("recommend RUN -k abc", "-k: expected a whole number, such as 1000000 or 1e6; got 'abc'."),
        (
            "train data --out x --seed 1.5",
            "--seed: expected a whole number, such as 1000000 or 1e6; got '1.5'.",
        ),
        ("shop --out x --share lots", "--share: expected a number; got 'lots'."),
        ("train", "offrec train needs DATASET and --out PATH; `offrec train --help` describes the arguments."),
        ("train --out x", "offrec train needs DATASET; `offrec train --help` describes the arguments."),
        ("train --out x --bogus 3", "DATASET is missing; `offrec train --help` describes the arguments."),
        (
            "train data --algoritm sl",
            "offrec train does not know --algoritm sl; `offrec train --help` describes the arguments.",
        ),
        ("simulate --sessions", "--sessions needs a value; `offrec simulate --help` describes the arguments."),
    ],
)
def test_the_sentence_names_the_argument(words: str, expected: str) -> None:
    done = offrec_here(*words.split(), code=2)
    assert sentence(done) == f"offrec: {expected}"
    assert done.stderr.count("\n") == 1


def test_without_a_command_the_commands_are_named() -> None:
    for words in ((), ("--nope",)):
        assert "prepare, train, evaluate" in sentence(offrec_here(*words, code=2))


def test_a_long_value_is_not_broken() -> None:
    value = "x-" * 200
    assert f"got '{value}'." in sentence(offrec_here("simulate", "--policy", value, code=2))


def test_help_is_printed_as_before() -> None:
    assert "usage: offrec simulate" in offrec_here("simulate", "--help").stdout


def test_an_unknown_box_becomes_a_sentence() -> None:
    bare = " Other   \n ------- \n  Nothing \n  fits.   \n"
    plain = "+- Other ---+\n| Nothing   |\n| fits.     |\n+-----------+\n"
    box = "╭─ Other ───╮\n│ Nothing   │\n│ fits.     │\n╰───────────╯\n"
    assert describe_box(box) == describe_box(plain) == describe_box(bare)
    assert describe_box(box) == (
        "The arguments cannot be read (Nothing fits.); `offrec --help` describes the arguments."
    )
