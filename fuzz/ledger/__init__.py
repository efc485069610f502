"""The ledger: a database of what sessions ran and found, night after night. Begin with rows.py, then schema.py.

A session's folder stays the source of truth while it runs; the ledger takes its rows from there, any number of times.

rows.py      what goes in and out, as values; one Batch is what a session has to say at one moment
folder.py    a session's folder as Batches; feed.py sends them; beside.py does so while the
             session runs
database.py  opens SQLite or PostgreSQL by URL; schema.py has the tables, migrations/ the way there
write.py     a Batch into the tables: upserts, so that nothing counts twice; names.py gives names their numbers,
             grouping.py findings their signature
life.py      the life of a signature (new, open, flaky, expected, fixed, regressed) as a function of its history
read.py      typed rows and pandas frames, for the dashboard; history.py what life.py needs
transfer.py  JSON Lines, for machines without a database
"""
