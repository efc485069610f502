"""Arguments: what has to stand around an instruction, and which cases have to come to it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fuzz.score.ptx_mutants.argument import ROOT, Argument, lines_of, source_of
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


def changed(operator: str, before: str, after: str, line: int, kind: str) -> Result:
    """A missed mutant of dynamic_mask, looked at: nothing differed."""
    bug = PtxMutant("c", kind, operator, line, before, after, target="dynamic_mask")
    return Result(bug.id, bug, "missed", looked=True, reaching=12, same_bits=True, same_values=True)


@pytest.mark.parametrize(("made", "status"), [("add.f32", "equivalent"), ("mul.f32", "missed")])
def test_any_thread_may_write_what_a_reduction_ends_with(made, status):
    text = f"\t{made} \t%r2, %r3, %r4;\n\t@%p1 st.shared.b32 [ %r1 + 0 ], %r2;\n"
    before, after = (f"@{guard} st.shared.b32 [ %r1 + 0 ], %r2;" for guard in ("%p1", "!%p1"))
    assert judged(changed("guard_negated", before, after, 2, "forward_kernel"), lambda bug: text).status == status


def test_the_bound_of_dlse_is_a_second_one_and_that_of_the_rows_is_not():
    path = Path(__file__).parents[4] / "kernels/dynamic_mask/row_state.py"
    lines = path.read_text().splitlines()
    second = next(n for n, line in enumerate(lines, 1) if "m < len_dlse" in line)
    first = next(n for n, line in enumerate(lines, 1) if "inside = m < n_q" in line)
    before, after = (f"setp.{compare}.s32 %p1, %r2, %r3;" for compare in ("lt", "le"))
    for number, status in ((second, "equivalent"), (first, "missed")):
        text = f"\tor.b32 \t%r2, %r1, 28;\n\t.loc\t1 {number} 5 // row_state.py:{number}:5\n\t{before}\n"
        found = judged(changed("compare_shifted", before, after, 3, "row_state_kernel"), lambda bug, text=text: text)
        assert found.status == status


@pytest.mark.parametrize(("label", "status"), [("$L__BB0_7:  // %._crit_edge", "equivalent"), ("$L__BB0_4:", "missed")])
def test_a_wait_where_a_loop_is_left_has_nothing_to_wait_for(label, status):
    text = f"{label}\n\t.loc\t1 175 29\n\tcp.async.wait_group \t0;\n\tbar.sync \t0;\n"
    found = changed("wait_dropped", "cp.async.wait_group 0;", ";", 3, "forward_kernel")
    assert judged(found, lambda bug: text).status == status


@pytest.mark.parametrize(("reads", "status"), [("", "equivalent"), ("\tld.global.b32 %r9, [%rd1];\n", "missed")])
def test_a_padded_call_has_no_row_past_the_end(reads, status):
    lines = [f"\tsetp.lt.s32 \t%p{n}, %r{n}, %r78;" for n in (20, 21)]
    text = reads + "\n".join(lines) + "\n"
    before, after = (f"setp.{compare}.s32 %p20, %r20, %r78;" for compare in ("lt", "le"))
    found = changed("compare_shifted", before, after, 2 if reads else 1, "span_rows_kernel")
    found = replace(found, alone=1, bug=replace(found.bug, target="nsa"))
    assert judged(found, lambda bug: text).status == status


def test_partial_results_of_an_or_may_change_places_and_partial_sums_may_not():
    text = "\tredux.sync.max.s32 \t%r9, %r8, %r7;\n\tst.shared.v4.b32 \t[%r1], {%r2, %r3, %r4, %r5};\n"
    before, after = (f"st.shared.v4.b32 [%r1], {{{x}, %r4, %r5}};" for x in ("%r2, %r3", "%r3, %r2"))
    bug = PtxMutant("c", "marks_kernel", "fragment_swapped", 2, before, after, target="dynamic_mask")
    seen = replace(result(2, before), bug=bug)
    assert judged(seen, lambda bug: text).rule == "one OR over all"
    assert judged(replace(seen, same_bits=False), lambda bug: text).status == "missed"
    assert judged(seen, lambda bug: text.replace("redux.sync.max", "redux.sync.add")).status == "missed"
    lists = replace(seen, bug=replace(bug, kind="lists_kernel"))
    assert judged(lists, lambda bug: text).status == "missed"


@pytest.mark.parametrize(("stored", "status"), [("tl.store(mCount", "equivalent"), ("tl.store(mOut", "missed")])
def test_any_thread_may_write_how_many_tiles_a_list_has_and_not_the_tiles(stored, status):
    source = (ROOT / "kernels/dynamic_mask/tile_lists.py").read_text().splitlines()
    line = next(n for n, one in enumerate(source, 1) if stored in one)
    before = "@%p1 st.global.b32 [ %rd1 + 0 ], { %r1 };"
    text = f"\t.loc\t1 {line} 5 // tile_lists.py:{line}:5\n\t{before}\n"
    bug = PtxMutant("c", "lists_kernel.2", "guard_negated", 2, before, before.replace("@", "@!"), target="dynamic_mask")
    assert judged(replace(result(2, before), bug=bug), lambda bug: text).status == status


def test_a_span_may_be_empty_at_either_end_and_rows_may_not_end_where_they_begin():
    text = "\tshr.s32 \t%r2, %r1, 7;\n\tsetp.lt.s32 \t%p1, %r2, %r3;\n"
    before = "setp.lt.s32 %p1, %r2, %r3;"
    bug = PtxMutant("c", "span_rows_kernel.3", "compare_shifted", 2, before, before.replace("lt", "le"), target="nsa")
    seen = replace(result(2, before), bug=bug, alone=1)
    assert judged(seen, lambda bug: text).rule == "an empty span"
    assert judged(replace(seen, alone=0), lambda bug: text).status == "missed"
    assert judged(seen, lambda bug: text.replace("shr.s32", "add.s32")).status == "missed"


@pytest.mark.parametrize(
    ("defined", "after", "status"),
    [
        ("shl.b32 \t%r2, %r1, 2;", 129, "equivalent"),
        ("shl.b32 \t%r2, %r1, 0;", 129, "missed"),
        ("shr.u32 \t%r2, %r1, 2;", 129, "missed"),
        ("shl.b32 \t%r2, %r1, 2;", 256, "missed"),
    ],
)
def test_the_lowest_bit_of_what_was_shifted_to_the_left_is_never_set(defined, after, status):
    bug = PtxMutant(
        "c", "split_kernel", "immediate_off_by_one", 2, "and.b32 %r3, %r2, 128;", f"and.b32 %r3, %r2, {after};",
        target="nsa",
    )  # fmt: skip
    seen = replace(result(2, bug.before), bug=bug)
    assert judged(seen, lambda bug: f"\t{defined}\n\tand.b32 \t%r3, %r2, 128;\n").status == status


def test_the_barrier_after_a_sum_over_warps_needs_bits_that_are_the_same():
    text = (
        "\tshfl.sync.bfly.b32 \t%r3, %r2, 1, 31, -1;\n$L__tmp1:\n\tadd.f32 \t%r4, %r2, %r3;\n\tbar.sync \t0;\n"
        "\tst.shared.b32 \t[%r5], %r4;\n"
    )
    bug = PtxMutant("c", "gate_weight_kernel", "barrier_dropped", 4, "bar.sync 0;", ";", target="nsa")
    seen = replace(result(4, bug.before), bug=bug)
    assert judged(seen, lambda bug: text).rule == "a warp's own places"
    assert judged(replace(seen, same_bits=False), lambda bug: text).status == "missed"
    assert judged(seen, lambda bug: text.replace("add.f32", "mul.f32")).status == "missed"


@pytest.mark.parametrize(
    ("rule", "path", "stands", "elsewhere", "kind", "operator", "before"),
    [
        ("bits that nobody reads", "tiles.py", "(rWords >> (n % BITS))", "rKeep = rMask != 0", "dbias_kernel",
         "sign_changed", "shr.u32 %r3, %r2, %r1;"),
        ("a program has a tile", "tile_lists.py", "for n_block in range", "active = any_key(", "marks_kernel",
         "guarded_dropped", "@%p1 bra $L__BB0_3;"),
        ("a warp's own places", "row_state.py", "tl.store(mState + planes", "tl.store(mState + offset",
         "row_state_kernel", "barrier_dropped", "bar.sync 0;"),
    ],
)  # fmt: skip
def test_an_argument_about_a_source_line_holds_for_that_line(rule, path, stands, elsewhere, kind, operator, before):
    source = (ROOT / "kernels/dynamic_mask" / path).read_text().splitlines()
    for text, status in ((stands, "equivalent"), (elsewhere, "missed")):
        line = next(n for n, one in enumerate(source, 1) if text in one)
        ptx = f"\t.loc\t1 {line} 5 // {path}:{line}:5\n\t{before}\n"
        bug = PtxMutant("c", kind, operator, 2, before, ";", target="dynamic_mask")
        seen = replace(result(2, before), bug=bug, same_values=operator == "guarded_dropped")
        found = judged(seen, lambda bug, ptx=ptx: ptx)
        assert (found.status, found.rule) == (status, rule if status == "equivalent" else "")


@pytest.mark.parametrize(
    ("before", "after", "seen", "status"),
    [
        ("shr.u64 %rd120, %rd95, 63;", "shr.u64 %rd120, %rd95, 62;", True, "equivalent"),
        ("shr.u64 %rd120, %rd95, 63;", "shr.u64 %rd120, %rd95, 62;", False, "missed"),
        ("shr.u64 %rd120, %rd95, 62;", "shr.u64 %rd120, %rd95, 61;", True, "missed"),
        ("shr.u64 %rd120, %rd95, 63;", "shr.u64 %rd120, %rd95, 64;", True, "missed"),
    ],
)
def test_the_sign_of_an_index_and_the_bit_below_it_are_0(before, after, seen, status):
    bug = PtxMutant("c", "transposed_kernel", "immediate_off_by_one", 1, before, after, target="nsa")
    made = Result(bug.id, bug, "missed", looked=True, reaching=25, same_bits=True, same_values=seen)
    assert judged(made, lambda bug: before).status == status
