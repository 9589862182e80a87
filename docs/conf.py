"""Sphinx settings: `make docs` builds this folder into site/."""

import sys
import tomllib
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "_extensions"), str(Path(__file__).parents[1] / "src")]

project = "offrec"
author = "The offrec authors"
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
version = release

extensions = ["myst_parser", "mathml", "reference"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
exclude_patterns = []

highlight_language = "none"
smartquotes = False  # it would turn --flags into dashes

html_theme = "furo"
html_title = f"offrec {release}"
html_static_path = ["_static"]
html_css_files = ["offrec.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
# The colours of the report, so that a page and a report look like one product.
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"
