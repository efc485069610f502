"""Small kernels, one for each instruction form, whose results on the emulated GPU are compared with a GPU's."""
