"""The kernels under test: one adapter per file, the registry, and @target for a user's own."""

from fuzz.core.case_limits import Size
from fuzz.core.refusal import limits, refusal
from fuzz.core.support import Refusal, Rule, Support
from fuzz.core.target import Execution, Target, Tensors
from fuzz.targets.user_function.function import target

__all__ = ["Execution", "Refusal", "Rule", "Size", "Support", "Target", "Tensors", "limits", "refusal", "target"]
