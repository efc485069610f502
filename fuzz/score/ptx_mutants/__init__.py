"""PTX mutants: how many small changes of the bundled kernels' PTX does the harness find on the emulated GPU?

    from fuzz.score.ptx_mutants.run import run
    score = run(300, seed=1, jobs=1, seconds=0.0, progress=print, folder=Path("…"))   # results.PtxScore
    python -m fuzz.score.ptx_mutants --count 300 --json ci/results/ptx_mutants_host.json

run.py          draws mutants, tries them, keeps each result
operators.py    the changes; async_operators.py: those of bulk copies, mbarriers and wgmma
configs.py      the kernels, and the cases
sampling.py     the mutants that a seed draws
trial.py        one mutant: runs the cases that reach it until one finds it; what a missed one did
recording.py    launches of the unchanged kernels, on which a mutant runs before any case runs with it
pool.py         worker processes
equivalence.py  which of the missed mutants are equivalent, and why; register_flow.py, mbarrier_order.py and
                truth_values.py: proofs from a kernel's text
results.py      PtxMutant, Result, PtxScore
render.py       `table(score)`: a score as Markdown
"""
