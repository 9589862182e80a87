"""Render math as MathML while the site is built, so that pages need no script and no outside request."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

# latex2mathml marks its output for display="block" only; furo's tables and lists need the inline form as well.
_ALIGNED = re.compile(r"(?<!\\)&|\\\\")


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write inline math and skip the node's text."""
    self.body.append(f'<span class="math">{_mathml(node.astext(), "inline")}</span>')
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write displayed math, with its number where it has a label."""
    latex = node.astext()
    if _ALIGNED.search(latex) and "\\begin{" not in latex:
        latex = f"\\begin{{aligned}}{latex}\\end{{aligned}}"
    self.body.append(self.starttag(node, "div", CLASS="math math-block"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(_mathml(latex, "block") + "</div>\n")
    raise nodes.SkipNode


def _mathml(latex: str, display: str) -> str:
    return convert(latex.strip(), display=display)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the renderer; `html_math_renderer = "mathml"` selects it."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
