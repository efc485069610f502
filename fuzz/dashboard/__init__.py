"""The dashboard: a ledger as static pages that open from a file, and as results where a pull request shows them.

model.py   what the site says, as values; they are site/data/*.json too
collect/   a ledger as these values: pandas over fuzz/ledger/query/read.py
render/    pages out of them: Jinja2 templates, Bokeh charts, SVG pictures, one script and one style sheet
checks/    JUnit XML, and GitHub's step summary and annotations
build.py   all of it into a folder
"""
