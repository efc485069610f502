"""The database itself: schema.py has its tables, rows.py their rows as values, database.py opens it."""
