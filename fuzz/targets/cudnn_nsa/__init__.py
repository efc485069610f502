"""cudnn.nsa_selection: begin with target.py."""
