"""The reader of PTX: debug information, and the source lines that it gives to instructions."""

from __future__ import annotations

from fuzz.devices.emulator.ptx import parse

TEXT = """\
.version 9.4
.target sm_90a
.address_size 64

.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0
)
.reqntid 128
{
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<2>;
	ld.param.b64 	%rd1, [kernel_param_0];
	.loc	1 7 14                          // mine.py:7:14
$L__tmp0:
	mov.u32 	%r1, %tid.x;
	// begin inline asm
	.loc	1 9 19                          // mine.py:9:19
	mov.u32 %r2, 0x0;
	.loc	1 10 19                         // mine.py:10:19
	ld.global.b32 { %r2 }, [ %rd1 + 0 ];
	// end inline asm
	.loc	2 30 5, function_name $L__info_string0, inlined_at 1 9 5
	add.s32 	%r3, %r1, %r2;
	.loc	1 0 0
	ret;
$L__func_end0:
}
	.file	1 "/home/me/mine.py"
	.file	2 "/usr/lib/triton/standard.py"
	.section	.debug_abbrev
	{
.b8 1                                   // Abbreviation Code
.b32 .debug_abbrev
	}
	.section	.debug_macinfo	{	}
"""


def test_an_instruction_has_the_line_of_its_source() -> None:
    kernel = parse(TEXT).kernels["kernel"]
    places = {i.name: kernel.place(i) for i in kernel.instructions}
    assert places == {
        "ld.param.b64": "",
        "mov.u32": "mine.py:9",
        "ld.global.b32": "mine.py:9",  # LLVM counts on with each line of inline assembly
        "add.s32": "standard.py:30 inlined at mine.py:9",
        "ret": "",
    }
    assert [kernel.place(i) for i in kernel.instructions if i.name == "mov.u32"] == ["mine.py:7", "mine.py:9"]


def test_debug_sections_are_no_statements_and_keep_the_count_of_lines() -> None:
    module = parse(TEXT.replace("\t.file	1", "\t.file	3") + "\n.visible .entry other()\n{\n\tret;\n}\n")
    (ret,) = module.kernels["other"].instructions
    assert ret.line == len(TEXT.splitlines()) + 4 and ret.source is None
    assert module.files == {3: "/home/me/mine.py", 2: "/usr/lib/triton/standard.py"}
    assert module.kernels["kernel"].place(module.kernels["kernel"].instructions[1]) == ""  # a file without a name


def test_a_semicolon_alone_is_no_instruction() -> None:
    kernel = parse(TEXT.replace("ret;", ";\n;ret;")).kernels["kernel"]
    assert [i.name for i in kernel.instructions] == [i.name for i in parse(TEXT).kernels["kernel"].instructions]
