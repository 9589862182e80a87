"""Fill the reference pages from the code: a comment `<!-- offrec: commands -->` in a page is replaced by its text.

| marker | text |
|---|---|
| `commands` | every command with its arguments |
| `options` | every option of a run, with defaults, bounds and meaning |
| `options LEARNER` | the options that LEARNER reads, one table |
| `api MODULE` | the public names of MODULE |
| `api MODULE NAME …` | only these names |

Nothing is written into the source folder, so the text cannot differ from the code that is installed.
"""

import re
from collections.abc import Callable

import reference_api
import reference_commands
import reference_options
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

MARKER = re.compile(r"^<!-- offrec: (\w+)((?: \S+)*) -->$", re.MULTILINE)
WRITERS: dict[str, Callable[..., str]] = {
    "commands": reference_commands.page,
    "options": reference_options.page,
    "api": reference_api.page,
}


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the markers of a page before it is parsed, and keep "1.2 ± .3" and "5 %" on one line."""
    text = MARKER.sub(lambda match: WRITERS[match[1]](*match[2].split()), source[0])
    source[0] = re.sub(r"(?<=\d) (?=%)", "\u00a0", re.sub(r"(?<=\d) ± (?=\.?\d)", "\u00a0±\u00a0", text))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect to the event that Sphinx sends when it has read a page."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
