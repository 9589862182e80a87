"""Render math as MathML while the site is built, so that pages need no script and no outside request."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

ALIGNED = re.compile(r"(?<!\\)&|\\\\")
# latex2mathml writes some relations as identifiers, raises primes twice and sets no space after named functions.
REPAIRS = [
    (re.compile("<mi>&#x0007E;</mi>"), "<mo>&#x0223C;</mo>"),
    (re.compile("<mi>&#x02016;</mi>"), "<mo>&#x02016;</mo>"),
    (re.compile("<mo>&#x0007C;</mo>"), '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>'),
    (
        re.compile("<msup>(<mi>.</mi>)<mi>&#x02032;</mi></msup>"),
        r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>',
    ),
    (re.compile("(</mi>|</msub>)<mi>(log|exp)</mi>"), r'\1<mspace width="0.17em" /><mi>\2</mi>'),
    (re.compile("<mi>(log|exp)</mi>(?!<mo)"), r'<mi>\1</mi><mspace width="0.17em" />'),
]


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write inline math and skip the node's text."""
    self.body.append(f'<span class="math">{_mathml(node.astext(), "inline")}</span>')
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write displayed math, with its number where it has a label."""
    latex = node.astext()
    if ALIGNED.search(latex) and "\\begin{" not in latex:
        latex = f"\\begin{{align*}}{latex}\\end{{align*}}"
    self.body.append(self.starttag(node, "div", CLASS="math math-block"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(_mathml(latex, "block") + "</div>\n")
    raise nodes.SkipNode


def _mathml(latex: str, display: str) -> str:
    math = convert(latex.strip(), display=display)
    for pattern, replacement in REPAIRS:
        math = pattern.sub(replacement, math)
    return math


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the renderer; `html_math_renderer = "mathml"` selects it."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
