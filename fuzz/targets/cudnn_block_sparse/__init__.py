"""cudnn.block_sparse: begin with target.py."""
