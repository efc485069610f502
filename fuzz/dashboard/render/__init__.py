"""Pages out of the values of model.py: pages.py fills the templates; charts.py, heat_map.py make Bokeh's models;
case_picture.py, mask_svg.py, sparkline.py small pictures; reproduce.py commands and scripts; waits.py reads who waits
for whom.

A page works without its script: the script sorts, filters, copies, switches the theme and draws the charts, each of
which has a table beside it. Nothing is fetched: charts are scripts that the page names, so that it opens from a file.
"""
