"""Generators of the manual's tables: `python -m docs.generate NAME` prints one, `make docs` puts all into the pages.

A page names its table between two comments, `<!-- generate: NAME -->` and `<!-- end -->`. The manual's pages hold a
placeholder there, which `mkdocs_hook.py` replaces while the site is built. README.md holds the table itself:
`python -m docs.generate --write README.md` renews it, `--check` fails where it is not up to date.

Begin with `registry.py`, which maps the names to the generators.
"""
