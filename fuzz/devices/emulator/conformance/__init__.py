"""Evidence that the emulator computes what a GPU does: a small kernel for each instruction form, run on both.

Begin with `kernel.py` (a micro-kernel and its inputs) and `suite.py` (all of them; one run on the emulator).
`micro_kernels.py` and `wgmma.py` write them, on numbers of `inputs.py`; `agreement.py` measures the distance to a GPU's
recorded answers; `tensor_sums.py` is a model of how tensor cores add. ci/emulator_vs_gpu.py records a GPU's answers.
"""
