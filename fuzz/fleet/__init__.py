"""A fleet: a session (fuzz/session) whose workers are Ray actors on many machines. Begin with crew.py, then worker.py.

crew.py      the workers of a session: started, given jobs, replaced
work_list.py what is to do and what is done: shards, and what becomes of one whose worker is lost
worker.py    a worker on its node: session.Worker in a thread; outbox.py keeps its records until health.py has found
             its GPU right
cases.py     its cases on record, each of them once; settling.py: the failures among them
kernels.py   compiled kernels as values; compiling.py has them compiled on the cluster's CPUs
messages.py  what crosses the network
member.py    a worker as the session's process sees it, and what the machines are to it; cluster.py: Ray's
"""
