"""What compute-sanitizer prints of two bad accesses."""

MEMCHECK = """\
========= COMPUTE-SANITIZER
some output of the program
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel():0x160 in memcheck_demo.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is misaligned
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x1754] in demo
=========
========= Invalid __global__ read of size 16 bytes
=========     at 0x3c8 in /home/u/forward.cu:42:forward(int*, int*)
=========     by thread (31,2,0) in block (3,1,0)
=========     Address 0x4 is out of bounds
=========
========= Invalid __global__ read of size 16 bytes
=========     at 0x3c8 in /home/u/forward.cu:42:forward(int*, int*)
=========     by thread (32,2,0) in block (3,1,0)
=========     Address 0x14 is out of bounds
========= ERROR SUMMARY: 3 errors
"""
