"""The kernels under test: one adapter per file, the registry, and @target for a user's own."""

from fuzz.targets.decorator import target
from fuzz.targets.target import Execution, Refusal, Rule, Support, Target, Tensors, limits, refusal

__all__ = ["Execution", "Refusal", "Rule", "Support", "Target", "Tensors", "limits", "refusal", "target"]
