"""Sphinx configuration: pages in Markdown, examples run while building, the catalogue of metrics from the registry."""

from __future__ import annotations

import sys
from pathlib import Path

import spherometer

sys.path.insert(0, str(Path(__file__).parent))

project = "Spherometer"
author = "The Spherometer developers"
copyright = "2026, The Spherometer developers"
release = version = spherometer.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # formulas are drawn without the internet
    "catalogue",
    "quantities",
]
html_theme = "furo"
html_title = "Spherometer"
html_static_path: list[str] = []
exclude_patterns = ["build", "gallery/*.py", "**/sg_execution_times.rst", "sg_execution_times.rst"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
suppress_warnings = ["config.cache"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "abort_on_example_error": True,
}
