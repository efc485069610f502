"""From parsed PTX to the micro-operations that the interpreter runs. Begin with decoder.py."""
