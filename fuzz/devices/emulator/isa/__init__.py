"""What each PTX instruction computes on 32 lanes: one table of forms (table.py), filled by moves, integers, floats,
…"""
