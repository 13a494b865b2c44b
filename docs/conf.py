"""Sphinx: `make docs` builds docs/_build/html, and a warning is an error."""

from importlib.metadata import version as installed

project = "vcmm"
author = "The vcmm authors"
copyright = author
release = version = installed("vcmm")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 2  # links such as guide.md#checkpoints
html_theme = "furo"
html_title = f"vcmm {version}"
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"  # docstrings write code in single backticks


def show_examples_as_code(app, what, name, obj, options, lines):
    """What stands under "Example:" in a docstring is Python, and not prose."""
    lines[:] = [
        part
        for line in lines
        for part in (["Example::", ""] if line.strip() == "Example:" else [line])
    ]


def setup(app):
    # Before napoleon, which would take the line for a heading.
    app.connect("autodoc-process-docstring", show_examples_as_code, priority=100)
