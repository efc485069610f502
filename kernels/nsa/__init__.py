"""Native sparse attention: compressed blocks, selected blocks and a window, each by kernels.blocksparse, under gates.

api what users call · checks what is refused · ops the custom operators · plans the two passes · operands the tensors
and settings of a call · compress, means, choice, selection how keys are compressed and chosen · branches the passes of
each · lists their block lists · gates the gates and the sums of gradients · launches of the Triton kernels · launcher
runs or plans kernels · injection what a mutant replaces.
"""

from kernels.nsa.api import Answer, native_sparse_answer, native_sparse_attention, plan, prepare
from kernels.nsa.selection import Selection

__all__ = ["Answer", "Selection", "native_sparse_answer", "native_sparse_attention", "plan", "prepare"]
