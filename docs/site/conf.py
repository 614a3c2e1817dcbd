"""How Sphinx builds the site: `make site`."""

project = "phalanx"
html_title = "phalanx"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]
# Headings have the anchors that GitHub gives them.
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
pygments_style = "sphinx"
# Recipes in TOML and sessions on a terminal name what they show as they go.
suppress_warnings = ["misc.highlighting_failure"]
