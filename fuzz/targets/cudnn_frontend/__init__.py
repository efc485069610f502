"""cudnn.sdpa: begin with target.py."""
