"""What a Runner raises. Never for anything that a target did in a case: that is a Verdict."""


class RunnerError(RuntimeError):
    """No child can be had: a user's file that does not import, CUDA missing, a device that fails its test."""


class KilledError(RunnerError):
    """The child was killed from outside before it could work: another attempt may succeed."""


class HarnessError(RunnerError):
    """The judge itself raised: a bug of the harness, with the child's traceback. Not a result of the case."""


class MachineError(HarnessError):
    """The machine kept a case from being run: a full disk, a compiler that somebody killed. One line."""
