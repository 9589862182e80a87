"""The exceptions that offrec raises for its user. A message says what was found, what was expected and what to do."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its class if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class InputError(Exception):
    """The input is not valid. The command line prints the message and exits with code 2."""


class RunError(Exception):
    """A run failed although its input is valid. The command line prints the message and exits with code 1."""


class Interrupted(Exception):
    """The user interrupted a run, which was saved. The command line exits with code 130."""
