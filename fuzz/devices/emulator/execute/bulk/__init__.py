"""Copies beside the warps: cp.async, bulk copies and TMA with tensor maps, st.async. Begin with copies.py."""
