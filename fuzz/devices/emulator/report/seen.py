"""A finding's facts, from which its sentence is made (`kinds.py`)."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_NAME = 60  # characters of a kernel's name, which compilers make of all its parameters


def shortened(kernel: str) -> str:
    """A kernel's name as texts have it."""
    return kernel if len(kernel) <= LONGEST_NAME else f"{kernel[:LONGEST_NAME]}…"


@dataclass(frozen=True)
class Seen:
    """A finding's facts, from which its sentence is made.

    kind         one of st.F_…
    instruction  the PTX instruction, as text
    place        the memory in words: 'k[0, 3, 5]', 'k, 64 bytes past its end', 'shared memory byte 12'
    address      the kernel's address, or what else the kind puts there (a barrier's number, a mask of lanes, …)
    size, value  bytes of the access, and a number that depends on the kind
    lane         the lane that was seen first
    memory       shape of the tensor: '(2, 64)'; "" where there is no tensor
    other        who else took part: 'CTA (0, 0, 0) warp 3'; "" where nobody did. own: it is the same warp
    threads      of a CTA
    rival        the instruction that another warp issued instead, as text
    remote       the place is in the shared memory of another CTA of the cluster
    register     a register's name
    """

    kind: int
    instruction: str
    place: str
    address: int
    size: int
    value: int
    lane: int = 0
    memory: str = ""
    other: str = ""
    own: bool = False
    threads: int = 0
    rival: str = ""
    remote: bool = False
    register: str = ""

    @property
    def name(self) -> str:
        """The instruction without its guard and operands: 'ld.global.b32'."""
        return next((word for word in self.instruction.split() if not word.startswith("@")), "")

    @property
    def verb(self) -> str:
        """The access that the instruction makes."""
        name = self.name
        if name.startswith(("st.async", "red.async")):
            return f"issues a {name[: name.index('.async')]}.async of"
        if name.startswith(("st.", "stmatrix")):
            return "writes"
        if name.startswith(("atom", "red", "mbarrier")):
            return "updates"
        if name.startswith(("cp.async.bulk", "cp.reduce.async.bulk")):
            return "issues a bulk copy of"
        if name.startswith("clusterlaunchcontrol"):
            return "asks for a response into"
        return "reads" if name.startswith(("ld", "cp.async", "wgmma")) else "accesses"
