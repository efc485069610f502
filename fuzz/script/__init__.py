"""`attnfuzz repro CASE.json --script out.py`: a self-contained script that shows a failure, for a bug report.

PyTorch and the kernel under test, nothing of the harness. The text is made for one case: it holds no branch for a
feature that the case lacks. masks the predicate · inputs the numbers and strides · formula the right answer · excerpt
parts of a module · user a call of one's own kernel · page puts the script together, sparse_page that of native sparse
attention; write chooses.
"""

from fuzz.script.write import ScriptError, write_script

__all__ = ["ScriptError", "write_script"]
