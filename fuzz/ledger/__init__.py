"""The ledger: a database of what sessions ran and found, night after night. Begin with rows.py, then schema.py.

A session's folder stays the source of truth while it runs; the ledger takes its rows from there, any number of times.

rows.py        what goes in and out, as values; one Batch is what a session has to say at one moment
folder.py      a session's folder as Batches, with sums.py, settled.py, environment.py; feed.py writes them, and
               beside.py has it done while the session runs
place.py       the option --ledger; database.py opens SQLite or PostgreSQL; schema.py has the tables, migrate.py and
               migrations/ the way there
write.py       a Batch into the tables: upserts, so that nothing counts twice; names.py gives names their numbers,
               grouping.py findings their signature
life.py        the life of a signature (new, open, flaky, expected, fixed, regressed), a function of the history that
               history.py reads; replaying.py runs its case again
signatures.py  read side: signatures with their lives; read.py: pandas frames, one for each question of a report
transfer.py    JSON Lines, for machines without a database; unload.py, write's mirror image
"""
