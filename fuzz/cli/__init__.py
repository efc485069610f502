"""The command line, `attnfuzz`: main.py has the parsers, commands.py what each command does."""
