"""Identity of one compiled kernel: its Variant, the Injection of a mutant, and the name that both build under.

Everything that the compiler must know is a field here; everything else (lengths, heads, strides, the true head dim,
scale, cap, list layout, broadcast or not, packed or padded) is an argument at run time, so that a thousand random cases
need tens of builds.
Nothing here imports cutlass: planning a session's builds must be cheap.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("forward", "preprocess", "dq", "backward", "postprocess")
DTYPES = ("bfloat16", "float16")
PADDED_DIMS = (32, 64, 96, 128, 160, 192, 256)
TILES = (64, 128)
# Queries of the wide tile: three warpgroups of 64 rows. NOTE [wide tiles] of forward/hopper/tuning.py
WIDE = 192
WIDEST_DIM = 64  # the largest padded head dim that it has registers for
# Queries of two tiles of tcgen05, by one CTA. NOTE [two query tiles] of forward/blackwell/kernel.py
PAIR = 256
PAIR_DIM = 128  # the largest padded head dim that they have tensor memory for
# Keys of the tile of a pair of CTAs: the backward kernel of backward/blackwell/pairs
PAIR_KEYS = 256
# products → the queries of a large tile of the forward kernel, and its largest padded head dim
LARGE_TILES = {"wgmma": (WIDE, WIDEST_DIM), "tcgen05": (PAIR, PAIR_DIM)}
# tile_n → the head dim up to which its gradients fit into registers: NOTE [large dims] of backward/tiling.py
LARGEST_DIM = {64: 256, 128: 128}
MASKS = ("none", "bits", "intervals", "band")
PRODUCTS = ("mma", "wgmma", "tcgen05")
# products → the arches that have their instructions, the default one first; mma: all
ARCHES_OF = {"wgmma": ("sm_90a",), "tcgen05": ("sm_100a", "sm_103a")}
OF_PREPROCESS = ("clear", "zero")  # injection points of the preprocessing kernel
OF_POSTPROCESS = ("is_added",)  # of the postprocessing kernel
# Injection points of the forward kernels that load by TMA
OF_TMA = ("wait_filled", "wait_empty", "whole", "expected_bytes", "fence_shared")
OF_CLUSTERS = ("meet_at_start", "leave")  # of Hopper's forward kernel, where CTAs form clusters
OF_NESTED = ("nested_rows", "mask_own")  # and where their rows are nested
OF_SPLITS = ("arrive_part", "entries_of_part")  # of Hopper's kernels, where tiles may be split
OF_DQ = ("statistics_row", "keep_listed_keys", "release_scored", "release_multiplied", "dq_factor")  # of the dQ kernel
# Injection points of the forward kernel that only the one with products by tcgen05 has
OF_TCGEN05 = (
    *("wait_scored", "wait_added", "wait_loaded", "wait_stored", "fence_after", "release_keys", "free_columns"),
    *OF_TMA,
    *("whole_output", "fence_output", "wait_read"),
    *("rows_of_tile", "first_column", "reads_last", "own_barrier", "meet_all", "power_of"),
    *("take_tile", "takers", "wait_stored_output", "adds", "waits_for_queries", "end_tile"),
)
# Injection points of the backward kernel that only the one with products by tcgen05 has
BACKWARD_OF_TCGEN05 = (
    *("await_scores", "await_products", "await_dq", "await_columns", "loaded_dq", "stored_ds", "publish_ds"),
    *("fence_products", "release_queries", "column_of_dq", "releases", "whole", "expected_bytes", "await_keys"),
    *("publish_dq", "dq_buffers_read", "dq_added"),
)
# Those that only the one of pairs of CTAs has
BACKWARD_OF_PAIRS = (
    *(
        "await_both",
        "await_once",
        "hand_on",
        "commit",
        "release_stage",
        "row_of_share",
        "owner_of",
        "keys_of_cta",
        "keys_written",
    ),
    *("arrivals", "meet_at_start", "meet_after_adds", "end_pair"),
)
# Injection points of the backward kernel that only Hopper's for dK and dV alone has
BACKWARD_OF_STEPS = ("release_scored_q", "release_q", "release_do", "await_sums")
ARCHES = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a")


@dataclass(frozen=True)
class Variant:
    """One kernel to compile.

    kind            forward, preprocess, dq, backward or postprocess
    dtype           of q, k, v, o and their gradients
    dim_padded      one of PADDED_DIMS: the head dim that the tiles are laid out for; the true one is an argument
    tile_m, tile_n  queries and keys of a tile, which is the block of the lists: 64 or 128; forward also the queries of
                    LARGE_TILES, backward by tcgen05 also PAIR_KEYS
    mask            where the mask of partial blocks comes from. none: partial blocks are treated as full ones; bits:
                    packed words; intervals: bounds per row; band: left and right around a diagonal, from scalars
    deterministic   backward: ordered adds to dQ
    softcap         scores are cap · tanh(score / cap)
    products        mma: mma.sync of a warp, on every arch; wgmma: of a warpgroup, on sm_90a; tcgen05: into tensor
                    memory, on sm_100a and sm_103a (forward: 128 or 256 queries). Backward and its postprocess have
                    the last two where `backward_products` says so
    tuning          overrides of the defaults of forward/tuning.py (hopper/ and blackwell/ have their own) and
                    backward/tiling.py, as sorted (name, value) pairs
    float32         dq, backward and postprocess: dQ, dK and dV are float32, not of `dtype`
    separate_dq     preprocess and backward: dQ is the dq kernel's, NOTE [separate dQ] of dq_by_queries/kernel.py: it
                    has no sums in memory, and nothing is added there

    Fields that a kind does not read must keep their defaults, so that equal kernels have equal variants.
    """

    kind: str
    dtype: str
    dim_padded: int
    tile_m: int = 128
    tile_n: int = 128
    mask: str = "none"
    deterministic: bool = False
    softcap: bool = False
    products: str = "mma"
    tuning: tuple[tuple[str, int], ...] = ()
    float32: bool = False
    separate_dq: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("kind", KINDS),
            ("dtype", DTYPES),
            ("dim_padded", PADDED_DIMS),
            ("tile_m", (*TILES, WIDE, PAIR)),
            ("tile_n", (*TILES, PAIR_KEYS)),
            ("mask", MASKS),
            ("products", PRODUCTS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"variant.{name} is {getattr(self, name)!r}; it must be one of {allowed}")
        if self.deterministic and self.kind != "backward":
            raise ValueError(f"variant.deterministic is for the backward kernel, not for {self.kind}")
        if self.float32 and self.kind not in ("dq", "backward", "postprocess"):
            raise ValueError(f"variant.float32 is for kernels that write gradients, not for {self.kind}")
        if self.float32 and self.products == "tcgen05":
            raise ValueError("variant.float32 is not for tcgen05, whose gradients have the variant's dtype")
        if self.separate_dq and (self.kind not in ("preprocess", "backward") or self.deterministic):
            raise ValueError("variant.separate_dq is for preprocess, and for the backward kernel without ordered adds")
        if self.kind == "dq" and self.products != "wgmma":
            raise ValueError(f"variant.products is {self.products!r}; the dq kernel has 'wgmma' alone")
        if self.products != "mma" and self.kind == "preprocess":
            raise ValueError(f"variant.products {self.products} is for kernels that multiply, not for {self.kind}")
        for products, (tile_m, most) in LARGE_TILES.items():
            there = self.kind == "forward" and self.products == products and self.dim_padded <= most
            if self.tile_m == tile_m and not there:
                raise ValueError(
                    f"variant.tile_m {tile_m} is for the forward kernel by {products} up to head dim {most}, not for "
                    f"{self.kind} by {self.products} at {self.dim_padded}"
                )
        if self.tile_n == PAIR_KEYS and not (
            self.kind == "backward"
            and self.products == "tcgen05"
            and backward_products("tcgen05", self.tile_n, self.dim_padded, self.tile_m) == "tcgen05"
        ):
            raise ValueError(
                f"variant.tile_n {PAIR_KEYS} is for the backward kernel by tcgen05, tiles of 128 queries and head dims "
                f"that are padded to 64 and 128, not for {self.kind} by {self.products} at {self.dim_padded}"
            )
        if tuple(sorted(self.tuning)) != self.tuning:
            raise ValueError(f"variant.tuning must be sorted (name, value) pairs, not {self.tuning!r}")

    @property
    def name(self) -> str:
        """A readable name, unique among variants, that is a C identifier."""
        short = {"bfloat16": "bf16", "float16": "fp16"}[self.dtype]
        parts = [self.kind, short, f"d{self.dim_padded}", f"m{self.tile_m}", f"n{self.tile_n}", self.mask]
        parts += ["det"] * self.deterministic + ["cap"] * self.softcap + ["f32"] * self.float32
        parts += ["nodq"] * self.separate_dq
        parts += [self.products] * (self.products != "mma") + [f"{key}{value}" for key, value in self.tuning]
        return "_".join(parts)

    def with_tuning(self, **values: int) -> "Variant":
        """A variant with these overrides added to the ones that it has."""
        return dataclasses.replace(self, tuning=tuple(sorted({**dict(self.tuning), **values}.items())))


def forward_products(arch: str, tile_m: int) -> str:
    """The products of the forward kernel that are the fastest on an arch, of those that were timed there: tcgen05 was
    not, as no GPU of its kind has run it."""
    return "wgmma" if arch == "sm_90a" and tile_m in (*TILES, WIDE) else "mma"


def backward_products(products: str, tile_n: int, dim_padded: int, tile_m: int = 128) -> str:
    """The products of the backward kernel of this padded dim for those requested: wgmma for tiles of 128 keys at dims
    64 and 128, and of 64 keys at 128 and 256; tcgen05 for tiles of 128 queries and 128 or 256 keys at 64 and 128; mma
    for all others."""
    if products == "tcgen05":
        there = tile_m == 128 and tile_n in (128, PAIR_KEYS) and dim_padded in (64, 128)
    else:
        there = dim_padded in ((64, 128) if tile_n == 128 else (128, 256))
    return products if there else "mma"


def has_separate_dq(products: str, tile_m: int, tile_n: int, dim_padded: int) -> bool:
    """True where dQ can be the dq kernel's: tiles of 128 queries, and a backward kernel by wgmma up to dim 128."""
    there = products == "wgmma" and tile_m == 128 and dim_padded <= LARGEST_DIM[128]
    return there and backward_products(products, tile_n, dim_padded, tile_m) == "wgmma"


def arch_for_products(products: str, arch: str) -> str:
    """The arch to compile a kernel with these products for, where any can be run and `arch` is the default."""
    arches = ARCHES_OF.get(products, ARCHES)
    return arch if arch in arches else arches[0]


def semaphores_of_tile(tile_m: int, dim_padded: int) -> int:
    """Semaphores of each dQ tile, of which kernels that have one use the first. At head dims 64 and 128 one for each
    multiplying warpgroup, NOTE [ordered bulk adds] of backward/transposed/dq_warps.py, or for each step of 80 queries
    that begins in the tile, NOTE [ordered runs] of runs_dq_warps.py there. At 256 two for each step of 64 queries: NOTE
    [ordered adds in turns] of backward/by_gradient/dq_warps.py."""
    return {64: 2, 128: 2, 256: tile_m // 64 * 2}.get(dim_padded, 1)


def padded_dim(dim: int) -> int:
    """The smallest padded head dim that holds `dim`. Raises ValueError for dims that no kernel here supports."""
    if dim % 8 or not 8 <= dim <= PADDED_DIMS[-1]:
        raise ValueError(f"dim is {dim}; it must be a multiple of 8 from 8 to {PADDED_DIMS[-1]}")
    return next(padded for padded in PADDED_DIMS if padded >= dim)


def depth_of(dim: int, padded: int) -> int:
    """Columns that products of `dim` by wgmma need of the kernel of a padded head dim; 0: all. In multiples of an
    instruction's depth where that saves an eighth of `padded_dim(dim)` and more, from 64 on: there are fewer kernels
    to compile."""
    exact, depth = padded_dim(dim), -(-dim // 16) * 16
    columns = depth if exact >= 64 and exact - depth >= exact // 8 else exact
    return columns if columns < padded else 0


def backward_dim(products: str, tile_m: int, tile_n: int, dim: int) -> int:
    """The padded head dim of the backward kernels for these products and tiles. By wgmma it is that of the next larger
    kernel where there is none of `padded_dim`, but not the double of it and more for tiles of 64 keys: mma is faster
    there (docs/performance/log.md)."""
    padded = padded_dim(dim)
    if products != "wgmma" or (tile_n == 64 and padded <= 64):
        return padded
    larger = (
        one for one in PADDED_DIMS if one >= padded and backward_products(products, tile_n, one, tile_m) == products
    )
    return next(larger, padded)


@dataclass(frozen=True)
class Injection:
    """Replacements of a mutant at the injection points of a kernel, each one small helper; the default replaces
    nothing.

    name          of the mutant, "" for none; a part of the build's name
    replacements  injection point → callable with the helper's own signature. Each kernel class lists its points in
                  `INJECTION_POINTS`; building raises ValueError for one that the kernel does not have
    """

    name: str = ""
    replacements: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.name) != bool(self.replacements):
            raise ValueError("an injection needs a name exactly when it replaces something")

    def pick(self, point: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """The helper to use at an injection point."""
        return self.replacements.get(point, default)

    def part(self, kind: str) -> "Injection":
        """The replacements of a backward mutant that belong to one of its kernels."""
        apart = {"preprocess": OF_PREPROCESS, "dq": OF_DQ, "postprocess": OF_POSTPROCESS}
        here = {
            name: bug
            for name, bug in self.replacements.items()
            if next((other for other, points in apart.items() if name in points), "backward") == kind
        }
        return Injection(self.name, here) if here else NO_INJECTION

    def check(self, known: tuple[str, ...], kernel: str) -> None:
        """Raise ValueError for a replacement that the kernel has no injection point for."""
        unknown = sorted(set(self.replacements) - set(known))
        if unknown:
            raise ValueError(f"{kernel} has no injection point {unknown}; its injection points are {sorted(known)}")

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.replacements))))


NO_INJECTION = Injection()


def build_name(variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> str:
    """The name under which a build is stored and its functions are exported: a C identifier."""
    if arch not in ARCHES:
        raise ValueError(f"arch is {arch!r}; it must be one of {ARCHES}")
    mutant = "".join(c if c.isalnum() else "_" for c in injection.name)
    return f"{variant.name}_{arch}" + (f"__{mutant}" if mutant else "")
