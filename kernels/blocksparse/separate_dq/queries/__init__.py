"""dQ of a tile of queries by one CTA, which keeps it in registers."""
