"""An order of the KV blocks with little waiting for deterministic gradients. Begin with planner.py."""
