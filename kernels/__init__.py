"""The bundled attention kernels. They work on their own: nothing here imports the harness or its oracles."""
