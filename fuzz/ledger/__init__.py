"""The ledger: a database of what sessions ran and found, night after night. Begin with tables/rows.py, then
tables/schema.py.

A session's folder stays the source of truth while it runs; the ledger takes its rows from there, any number of times.

tables/       the database, SQLite or PostgreSQL: its tables, rows as values, the way from an older version
ingest/       a session's folder as Batches, written as upserts, so that nothing counts twice
query/        read side: signatures with their lives, frames for each question of a report, all rows for an export
place.py      the option --ledger
grouping.py   gives findings their signature
life.py       the life of a signature (new, open, flaky, expected, fixed, regressed), a function of its history;
              rate.py how often it shows, replaying.py runs its case again
transfer.py   JSON Lines, for machines without a database
"""
