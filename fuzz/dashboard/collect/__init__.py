"""A ledger as the values of model.py; begin with site.py. None of it reads the table of runs."""
