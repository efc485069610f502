"""Arguments for mutants of how Hopper's forward kernels by wgmma take tiles and count their steps, with what launches
make sure of. See equivalence.py."""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.argument import Argument

_WGMMA = ("blocksparse.wgmma",)
_NO_ROWS = (
    "A tile that begins just where its sequence ends is worked on as one with rows is, and not passed over. Its place "
    "is that of a tile of the longest sequence, so it has a row of lists; its rows are none of the sequence's, so none "
    "is loaded (a tile that is cut off, of no rows) and none of O and LSE is written: each row that is written is "
    "compared with the length. Tests run it."
)


def asks_for_steps(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX compares the number of a tile's steps with 1. That is
    the last word that is announced of a tile, to which a loop counts (`Tile` of forward/tile_scheduler.py)."""
    asked = re.match(r"\s*setp\.lt\.s32\s+%p\d+, (%r\d+), 1;", text.splitlines()[number - 1])
    if asked is None:
        return False
    word = re.escape(asked[1])
    given = re.findall(rf"^\s*[\w.:]+\s+{word}, .*\n", text, re.M)
    announced = (
        rf"^\tshfl\.sync\.idx\.b32 \t{word}, %r\d+, 0, 31, -1;\n\tshl\.b32 .*\n\tadd\.s32 .*\n\tld\.shared\.v2\.b64 "
    )
    return (
        len(given) == 1
        and re.search(announced, text, re.M) is not None
        and re.search(rf"^\tsetp\.ge\.s32 \t%p\d+, %r\d+, {word};\n", text, re.M) is not None
    )


TILE_ARGUMENTS = (
    Argument(
        "a tile without rows",
        _NO_ROWS,
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        kinds=("forward",),
        after=r"^setp\.le\.s32 ",
        near=r"setp\.ge\.s32 \t(%p\d+), %r\d+, %r\d+;\n\tshl\.b32 \t(%r\d+), %r\d+, [67];\n"
        r"\tsetp\.lt\.s32 \t(%p\d+), \2, %r\d+;\n\tor\.pred \t(%p\d+), \1, \3;\n\t@\4 bra",
        defined=r"shl\.b32 \t%r\d+, %r\d+, [67];",
        follows=r"\tor\.pred \t(%p\d+), %p\d+, %p\d+;\n\t@\1 bra",
        targets=_WGMMA,
    ),
    Argument(
        "a tile without rows",
        _NO_ROWS,
        ("compare_shifted",),
        r"setp\.ge\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        kinds=("forward",),
        after=r"^setp\.gt\.s32 ",
        near=r"setp\.lt\.s32 \t(%p\d+), %r\d+, %r\d+;\n\tshl\.b32 \t(%r\d+), %r\d+, [67];\n"
        r"\tsetp\.ge\.s32 \t(%p\d+), \2, %r\d+;\n\tand\.pred \t(%p\d+), \1, \3;\n\t@\4 bra",
        defined=r"shl\.b32 \t%r\d+, %r\d+, [67];",
        follows=r"\tand\.pred \t(%p\d+), %p\d+, %p\d+;\n\t@\1 bra",
        targets=_WGMMA,
    ),
    Argument(
        "each part has a step",
        "Whether a tile, or its part, has a step is asked in a kernel that may split tiles. It is launched where some "
        "are split alone (`split_sums` of launch/forward.py), of a full mask, whose tiles all list all blocks of keys. "
        "That takes two blocks or more, and no more parts than blocks (`split_of` of launch/split_tiles.py): each has "
        "a step.",
        ("bound_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, 1;",
        "same_values",
        kinds=("forward",),
        configs="_full_",
        after=r", 0;$",
        targets=_WGMMA,
        proof=asks_for_steps,
    ),
)
