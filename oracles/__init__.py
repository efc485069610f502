"""What is right: the question (Problem, Mask), the reference answer and the judges. Imports nothing of fuzz/ or
kernels/."""
