"""Definition of a right answer: the question (Problem, Mask), the reference answer and the judges. Imports nothing of
fuzz/ or kernels/."""
