"""The killable process that owns a device, its client, and the evidence taken when it hangs or dies.

    with Runner("host") as runner:
        verdict = runner.run(case)

client.py is what the harness calls. zygote.py runs in a process that has imported everything and touches no device;
worker.py in the one forked from it that may die; process.py owns both from outside. deadline.py follows one case by the
clock; stack_dump.py, gpu.py and proc_stats.py look at a child from outside; lost_case.py makes the verdict.
docs/explanation/hangs.md has the reasons. Linux only.
"""

from fuzz.runner.client import Runner
from fuzz.runner.errors import HarnessError, MachineError, RunnerError
from fuzz.runner.limits import CUDA, HOST, Limits

__all__ = ["CUDA", "HOST", "HarnessError", "Limits", "MachineError", "Runner", "RunnerError"]
