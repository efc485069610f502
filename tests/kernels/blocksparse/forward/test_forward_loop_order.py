"""The order of instructions in the main loop of Hopper's forward kernel where tiles may be split. On an H200 the loop
is 5 % slower where P · V is awaited behind a dozen exponentials (docs/performance/log.md, "Split tiles"), and the
assembler decides that by code far from the loop."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from kernels.blocksparse.compile.build import build
from kernels.blocksparse.launch.split_tiles import without_splits
from kernels.blocksparse.spec.variant import WIDE, Variant

CUOBJDUMP = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
LATER = 2  # exponentials behind which P · V may be awaited beyond those in the kernel that splits none


def loops(variant: Variant, folder: Path) -> list[list[str]]:
    """Instructions of the innermost loops that multiply and take exponentials, as the DSL's assembler has them."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(build(variant, "sm_90a").artifacts.CUBIN)
    sass = subprocess.run([CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    code = [(int(at, 16), what) for at, what in re.findall(r"/\*([0-9a-f]{4,6})\*/ +(\S.*?) *;", sass)]
    spans = [(int(to[1], 16), at) for at, what in code if (to := re.search(r"\bBRA\b.* 0x([0-9a-f]+)$", what))]
    found = {}
    for first, last in spans:
        inside = [what for at, what in code if first <= at <= last]
        if first <= last and {"HGMMA", "MUFU"} <= {word for what in inside for word in re.findall(r"HGMMA|MUFU", what)}:
            found[first, last] = inside
    return [
        inside
        for span, inside in found.items()
        if not any(other != span and span[0] <= other[0] and other[1] <= span[1] for other in found)
    ]


def exponentials_before_products(loop: list[str]) -> int | None:
    """How many exponentials come before the last wait for products in a loop of one step; None for a loop of more."""
    waits = [i for i, what in enumerate(loop) if "WARPGROUP.DEPBAR" in what]
    return sum("MUFU.EX2" in what for what in loop[: waits[-1]]) if len(waits) == 2 else None


@pytest.mark.skipif(not CUOBJDUMP.exists(), reason="needs cuobjdump")
@pytest.mark.nightly
@pytest.mark.parametrize(("dim", "tile_m", "cluster"), [(64, WIDE, 1), (96, 128, 1), (128, 128, 2)])
def test_products_are_awaited_as_early_as_where_no_tile_is_split(dim, tile_m, cluster, tmp_path):
    tuning = (("cluster", 2),) * (cluster > 1) + (("splits", 1),)
    of = Variant("forward", "bfloat16", dim, tile_m, products="wgmma", tuning=tuning)
    splits, plain = (
        [before for loop in loops(one, tmp_path) if (before := exponentials_before_products(loop)) is not None]
        for one in (of, without_splits(of))
    )
    # steps without a mask, and those where keys end; of parts of tiles too
    assert len(splits) == 4 and len(plain) == 2
    assert max(splits) <= max(plain) + LATER, (splits, plain)
