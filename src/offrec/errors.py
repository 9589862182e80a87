"""The exceptions that reach a user: a sentence that says what was found, what was expected and what to do."""


def first_line(error: BaseException) -> str:
    """What another's exception says, or at least what it is."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class InputError(Exception):
    """Something from outside is wrong: the command line prints the sentence and exits with code 2."""


class RunError(Exception):
    """A run cannot go on, through no fault of the input: the command line prints the sentence and exits with code 1."""


class Interrupted(Exception):
    """The user asked to stop. What was done is saved; exit code 130."""
