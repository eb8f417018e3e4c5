"""Configure Sphinx: `make docs` builds the site offline into build/docs."""

import sys
from pathlib import Path

from td3_lightning import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "td3_lightning"
author = "the td3_lightning authors"
copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference"]
exclude_patterns = ["_extensions"]
html_theme = "furo"
html_title = f"td3_lightning {release}"

nb_execution_mode = "off"  # a test executes the notebook; its pictures are those of the published run
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["config.cache"]

default_role = "code"  # docstrings use single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # Lightning's docstrings refer to Lightning's own pages
napoleon_google_docstring = True
napoleon_numpy_docstring = False
