"""From a session's folder into the ledger: folder.py reads it, write.py writes, feed.py and beside.py say when."""
