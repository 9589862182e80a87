"""Docstrings and help texts as Markdown."""

import re
import textwrap

SECTIONS = ("Args", "Arguments", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples", "Note", "Notes")
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_FLAG = re.compile(r"(?<![\w`-])(--[a-z][\w-]*)(?![\w`])(?=(?:[^`]*`[^`]*`)*[^`]*$)")
_SPECIAL = re.compile(r"([\\*_\[\]<>$#|{}])")


def escape(text: str) -> str:
    """Escape what Markdown would read as markup, outside of code in backticks, and show flags as code."""
    parts = _CODE.split(_FLAG.sub(r"`\1`", text))
    return "".join(part if index % 2 else _SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts))


def escape_cell(text: str) -> str:
    """Escape a text for one cell of a table."""
    parts = _CODE.split(_FLAG.sub(r"`\1`", " ".join(text.split())))
    return "".join(
        part.replace("|", "\\|") if index % 2 else _SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts)
    )


def prose(docstring: str) -> str:
    """Turn a docstring into Markdown: Google-style sections, indented blocks as code, paragraphs."""
    out: list[str] = []
    for title, body in _sections(docstring):
        if title is None:
            out.append(_paragraphs(body))
        elif title in ("Example", "Examples"):
            out.append(f"**{title}**\n\n{_example(body)}")
        elif title in ("Args", "Arguments", "Attributes", "Raises"):
            heading = {"Args": "Arguments"}.get(title, title)
            out.append(f"**{heading}**\n\n{_items(body)}")
        else:
            out.append(f"**{title}**\n\n{_paragraphs(body)}")
    return "\n\n".join(part for part in out if part)


def table(columns: list[str], rows: list[str]) -> str:
    """Return a table of rows that are Markdown already."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([":::{container} reference-table", *head, *rows, ":::"])


def _sections(docstring: str) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, list[str]]] = [(None, [])]
    for line in docstring.splitlines():
        match = re.fullmatch(r"(\w+):", line)
        inline = re.match(r"(Examples?): (.+)", line)
        if match and match[1] in SECTIONS:
            found.append((match[1], []))
        elif inline:
            found.append((inline[1], [" " * (len(inline[1]) + 2) + inline[2]]))
        elif found[-1][0] is not None and line and not line.startswith(" "):
            found.append((None, [line]))
        else:
            found[-1][1].append(line)
    return [(title, textwrap.dedent("\n".join(lines)).strip("\n")) for title, lines in found if "".join(lines).strip()]


def _paragraphs(text: str) -> str:
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines if line):
            out.append(_code(textwrap.dedent(block), "text"))
        elif all(re.match(r"\s*[-*] |\s{2,}", line) for line in lines):
            out.append("\n".join(re.sub(r"^(\s*)[-*] (.*)", lambda m: f"{m[1]}- {escape(m[2])}", x) for x in lines))
        else:
            out.append(escape(block))
    return "\n\n".join(out)


def _items(text: str) -> str:
    """Turn "name: meaning" lines, with indented continuation lines, into a list."""
    items: list[str] = []
    for line in text.splitlines():
        if (line and not line.startswith(" ")) or not items:
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    out = []
    for item in items:
        name, colon, meaning = item.partition(": ")
        out.append(f"- `{name}`: {escape(meaning)}" if colon else f"- {escape(item)}")
    return "\n".join(out)


def _example(text: str) -> str:
    text = textwrap.dedent(text.replace("```python", "").replace("```", "")).strip("\n")
    language = "text" if re.match(r"\s*(\$ )?(offrec|python|curl|make) ", text) else "python"
    return _code(text, language)


def _code(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
