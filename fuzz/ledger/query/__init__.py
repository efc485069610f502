"""Out of the ledger: read.py for reports, signatures.py for what is open, unload.py for `attnfuzz export`."""
