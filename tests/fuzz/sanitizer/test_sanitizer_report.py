"""The reader of compute-sanitizer's text: the forms that its manual and its releases write."""

from __future__ import annotations

import pytest
from sanitizer_output import MEMCHECK

from fuzz.sanitizer import read

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
========= and Read access at sumKernel(int *, int *)+0x100 in block_error.cu:51 [508 hazards]
=========
========= Warning: Race reported between Read access at 0xa60 in void Kernel<(int)256>(const int *, int, int *)
=========     and Write access at 0xcc0 in void Kernel<(int)256>(const int *, int, int *) [28 hazards]
=========     and Write access at 0xcd0 in void Kernel<(int)256>(const int *, int, int *) [2 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""

INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
========= at vectorAdd(int *)+0x70 in memset_error.cu:41
========= by thread (31,0,0) in block (1,0,0)
========= Address 0x7f3c7ec000fc
========= ERROR SUMMARY: 257 errors
========= ERROR SUMMARY: 157 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""

SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at kernel_cutlass_backward+0x15520
=========     by thread (128,0,0) in block (0,0,0)
========= Barrier error detected. Missing wait.
=========     at launch_tma_load+0xbb10 in matmul.cu:98
=========     by thread (128,0,0) in block (0,0,0)
=========     Barrier is located at shared address 0x30408
=========         Device Frame: my_matmul_kernel at line 462
========= ERROR SUMMARY: 2 errors
"""


def test_memcheck_names_the_kernel_the_thread_and_the_address() -> None:
    report = read(MEMCHECK, "memcheck")
    assert report.errors == 3 and not report.clean
    first, second = report.findings
    assert (first.oracle, first.kind, first.place.pattern) == (
        "sanitizer.memcheck",
        "invalid_access",
        "unaligned_kernel",
    )
    assert first.message == (
        "Invalid __global__ write of size 4 bytes in unaligned_kernel(), at memcheck_demo.cu:6, by thread (0,0,0) in "
        "block (0,0,0), Address 0x7f6510c00001 is misaligned"
    )
    assert second.place.pattern == "forward" and "/home/u/forward.cu:42" in second.message
    assert second.numbers == {
        "count": 2, "thread_x": 31, "thread_y": 2, "thread_z": 0, "block_x": 3, "block_y": 1, "block_z": 0
    }  # fmt: skip
    assert second.message.endswith("(and 1 more like it)")


def test_racecheck_counts_hazards_and_names_both_sides() -> None:
    report = read(RACECHECK, "racecheck")
    first, second = report.findings
    assert report.errors == 2
    assert (first.kind, first.place.pattern, first.numbers) == ("race", "sumKernel", {"count": 1, "hazards": 508})
    assert "block_error.cu:41" in first.message and "block_error.cu:51" in first.message
    assert second.numbers["hazards"] == 30 and second.place.pattern == "void Kernel<"


def test_two_races_of_a_kernel_without_line_numbers_are_two_findings() -> None:
    race = """\
========= Warning: Race reported between Read access at kernel_cutlass_backward+0xa60
=========     and Write access at kernel_cutlass_backward+0xcc0 [1,024 hazards]
"""
    text = race + race.replace("0xa60", "0x1a60") + "========= RACECHECK SUMMARY: 2 hazards displayed\n"
    first, second = read(text, "racecheck").findings
    assert first.place == second.place and first.numbers == {"count": 1, "hazards": 1024}
    assert "Read access at kernel_cutlass_backward+0xa60, and Write" in first.message and "+0x1a60" in second.message


def test_initcheck_and_synccheck() -> None:
    (read_before_write,) = read(INITCHECK, "initcheck").findings
    assert (read_before_write.kind, read_before_write.place.pattern) == ("uninitialized_read", "vectorAdd")
    assert read(INITCHECK, "initcheck").errors == 257
    divergent, missing = read(SYNCCHECK, "synccheck").findings
    assert divergent.kind == missing.kind == "barrier"
    assert divergent.place.pattern == "kernel_cutlass_backward" and "Divergent thread(s) in block" in divergent.message
    assert "shared address 0x30408" in missing.message


def test_unindented_details_are_read_too() -> None:
    flat = "\n".join("========= " + line.lstrip("= ") for line in MEMCHECK.splitlines() if line.startswith("="))
    assert [f.message for f in read(flat, "memcheck").findings] == [
        f.message for f in read(MEMCHECK, "memcheck").findings
    ]


@pytest.mark.parametrize(
    "text",
    [
        "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
        "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
    ],
)
def test_a_clean_report_is_clean(text: str) -> None:
    assert read(text, "memcheck").clean


def test_a_report_that_breaks_off_is_not_clean() -> None:
    for text in ("", "nothing of the tool", "========= COMPUTE-SANITIZER\n"):
        report = read(text, "memcheck")
        assert report.errors is None and not report.clean
    broken = read("========= Error: No attachable process found. compute-sanitizer timed-out.\n", "memcheck")
    assert broken.trouble == ("Error: No attachable process found. compute-sanitizer timed-out.",)
