"""The forward kernel for Hopper: products of warpgroups (wgmma), loads by warps of their own.

Layouts, masks, lists, scheduling, the meaning of every argument and the numbers of a row are those of forward.py.
"""
