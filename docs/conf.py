"""Settings with which Sphinx makes a site of these pages, for `make site`.

Rule of this file: settings, and no text of a page. The pages are Markdown as it is read on the web as well, so what a
site needs besides is here: anchors are made alike, and the pages of a folder whose README lists them are in the menu
below it.
"""

from __future__ import annotations

from sphinx.application import Sphinx

import prophet_scheduler

project = "Prophet"
version = release = prophet_scheduler.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# Notes are part of the pages of results, and data is what those are made from.
exclude_patterns = ["results/notes", "results/data"]
myst_heading_anchors = 6
# A block without a language is commands to be typed.
highlight_language = "sh"

# Docstrings have code between single backticks. What they are read for needs no framework.
default_role = "code"
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Prophet {release}"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

README = "README"
CONTENTS = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts the pages of a folder into the menu below the folder's README."""
    if docname.rpartition("/")[2] == README:
        source[0] += CONTENTS


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
