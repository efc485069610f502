"""Arguments: what has to stand around an instruction, and which cases have to come to it."""

import pytest
from msgspec.structs import replace

from fuzz.score.ptx_mutants.argument import Argument, lines_of, source_of
from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.triton_arguments import TRITON_ARGUMENTS

COPIES = "\n".join(
    ("cp.async.commit_group;", "mov.u32 %r1, 1;", "cp.async.commit_group;", "cp.async.wait_group 0;", "ret;")
)


def result(text_line: int, before: str, **fields: object) -> Result:
    bug = PtxMutant("c", "forward_kernel", "commit_dropped", text_line, before, ";", target="dynamic_mask")
    seen = Result(bug.id, bug, "missed", looked=True, reaching=1, same_bits=True, same_values=True)
    return replace(seen, **fields)


@pytest.mark.parametrize(
    ("text", "line", "status"),
    [
        (COPIES, 1, "equivalent"),
        (COPIES, 3, "missed"),  # nothing commits what follows before the wait
        (COPIES.replace("wait_group 0", "wait_group 1"), 1, "missed"),
        (COPIES.replace("mov.u32 %r1, 1;", "\tbra $L__BB0_1;"), 1, "missed"),
        (COPIES.replace("mov.u32 %r1, 1;", "$L__BB0_1:"), 1, "missed"),
    ],
)
def test_a_group_that_is_not_closed_needs_another_commit_before_a_wait_for_all(text, line, status):
    assert judged(result(line, "cp.async.commit_group;"), lambda bug: text).status == status


def test_the_function_of_an_instruction_is_that_of_its_source_line():
    path = "kernels/nsa/lists/chosen.py"
    inside = lines_of(path, "write_words")
    assert inside and not inside & lines_of(path, "tile_seen")
    first = min(line for _, line in inside)
    text = f"\t.loc\t1 {first} 3 // chosen.py:{first}:3\n\tadd.s32 %r1, %r1, 2;\n\t.loc\t1 9999 1 // chosen.py:9999:1\n"
    bug = PtxMutant("c", "chosen_kernel", "immediate_off_by_one", 2, "add.s32 %r1, %r1, 2;", "add.s32 %r1, %r1, 3;")
    assert source_of(bug, lambda bug: text) == ("chosen.py", first)
    assert source_of(replace(bug, line=1), lambda bug: text) == ("", 0)
    words = replace(result(2, bug.before, same_values=False), bug=replace(bug, target="nsa"))
    known = lambda bug: text  # noqa: E731
    assert judged(words, known).status == "missed"
    assert judged(replace(words, alone=1), known).rule == "words of a table"
    elsewhere = text.replace(f"chosen.py:{first}", "chosen.py:1")
    assert judged(replace(words, alone=1), lambda bug: elsewhere).status == "missed"


def test_arguments_about_functions_name_some_that_are_there():
    named = [one.inside.split() for one in TRITON_ARGUMENTS if one.inside]
    assert named and all(lines_of(*one) for one in named)
    assert isinstance(TRITON_ARGUMENTS[0], Argument)
