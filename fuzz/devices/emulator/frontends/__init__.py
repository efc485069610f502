"""The ways in for kernels as their authors launch them. `emulated.py` is the block of code in which launches run on the
emulated GPU; a file for each language: `triton_driver.py`. Compiled CuTe DSL functions and PTX come through `api.py`.
"""
