"""Small PTX kernels for the emulator's tests: a body between a prologue that loads pointers and an epilogue."""

from fuzz.devices.emulator import EmulationError, Emulator

HEADER = ".version 8.8\n.target sm_80\n.address_size 64\n"


def kernel(body, pointers=1, shared=0, name="k"):
    """A kernel with `pointers` 64-bit arguments in %p0, %p1, …; %tid in %t, its CTA's number in %c; shared memory
    `s`.
    """
    params = ", ".join(f".param .u64 arg{i}" for i in range(pointers))
    loads = "\n".join(f"ld.param.b64 %p{i}, [arg{i}];" for i in range(pointers))
    return f"""{HEADER}
.visible .entry {name}({params})
{{
.reg .pred %q<20>;
.reg .b16 %h<40>;
.reg .b32 %r<80>;
.reg .b32 %t, %c, %n;
.reg .b64 %d<40>;
.reg .b64 %p<8>;
.shared .align 128 .b8 s[{max(shared, 16)}];
{loads}
mov.u32 %t, %tid.x;
mov.u32 %c, %ctaid.x;
mov.u32 %n, %nctaid.x;
{body}
ret;
}}
"""


def own_word(pointer="%p0", into="%d0"):
    """Address of the thread's own 32-bit word in a tensor."""
    return f"mul.wide.u32 {into}, %t, 4; add.s64 {into}, {pointer}, {into};"


def run(body, *tensors, grid=1, block=32, shared=0, dynamic=0, only=None, cluster=None, **options):
    """Runs the body on the tensors; the report, also when something was found."""
    emulator = Emulator(**{"strict": False, **options})
    module = emulator.load_ptx(kernel(body, len(tensors), shared))
    sizes = [tuple(x) if isinstance(x, tuple) else (x,) for x in (grid, block)]
    return module.launch(None, *sizes, tensors, shared=dynamic, only=only, cluster=cluster)


def kinds(report):
    """The kinds of what a run found."""
    return {f.kind for f in report.findings}


__all__ = ["HEADER", "EmulationError", "Emulator", "kernel", "kinds", "own_word", "run"]
