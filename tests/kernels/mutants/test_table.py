"""The table of mutants, and the names that targets list, are those of the mutants that there are."""

import pytest

pytest.importorskip("triton")
pytest.importorskip("cutlass")

from fuzz.targets.blocksparse import catalog as blocksparse
from fuzz.targets.sdpa import catalog as sdpa
from kernels.mutants import names
from kernels.mutants.__main__ import all_mutants, main


def test_files_are_up_to_date():
    assert main(["--check"]) == 0


def test_every_bug_says_what_it_breaks_where_and_whence():
    for mutants in all_mutants().values():
        for name, mutant in mutants.items():
            assert mutant.name == name and mutant.summary.endswith(".") and mutant.source and mutant.point, name


def test_every_bug_is_a_target():
    for module, known in ((sdpa, names.SDPA), (blocksparse, names.BLOCKSPARSE)):
        assert {target.mutant for target in module.mutants()} == set(known)
