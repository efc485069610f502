"""Evidence that the emulator computes what a GPU does: a small kernel for each instruction form, run on both.

Begin with `kernel.py` (a micro-kernel and its inputs) and `suite.py` (all of them; one run on the emulator).
`micro_kernels.py`, `wgmma.py`, `mbarriers.py` and `bulk/` write them, on numbers of `inputs.py`; `tensor_maps.py` has
tensor maps to encode. `agreement.py` and `map_agreement.py` measure the distance to a GPU's recorded answers;
`tensor_sums.py` is a model of how tensor cores add. ci/emulator_vs_gpu.py records a GPU's answers: `driver.py` runs a
kernel there, `gpu_process.py` outlives kernels that hang or fail.
"""
