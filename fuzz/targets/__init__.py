"""The kernels under test: one adapter per file, the registry, and @target for a user's own."""

from fuzz.core.target import Execution, Refusal, Rule, Support, Target, Tensors, limits, refusal
from fuzz.targets.function import target

__all__ = ["Execution", "Refusal", "Rule", "Support", "Target", "Tensors", "limits", "refusal", "target"]
