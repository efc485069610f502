"""Problems of Hopper's transposed backward kernel, for its tests."""

import torch
from backward_problems import Spec
from transposed_backward import WITH_RUNS

DEEP_RUNS = (("depth", 112), *WITH_RUNS)
# Of ordered adds with runs: several sequences; heads that share a unit; units of their own
ORDERED_RUNS = {
    "runs of tiles, ordered": Spec(
        (1300,) * 2, (384,) * 2, 2, 1, dim=128, tile_m=128, whole=True, deterministic=True, tuning=WITH_RUNS
    ),
    "runs of tiles, ordered, three windows of pieces": Spec(
        *((1300,), (256,), 8, 1),
        dim=128,
        tile_m=128,
        whole=True,
        deterministic=True,
        group_split=1,
        tuning=WITH_RUNS,
    ),
    "runs of tiles, ordered, split, float16, a view": Spec(
        *((1290,), (512,), 4, 1),
        dim=104,
        tile_m=128,
        dtype=torch.float16,
        view=True,
        whole=True,
        deterministic=True,
        group_split=2,
        tuning=DEEP_RUNS,
    ),
}
SPECS = {
    "full": Spec((150,), (130,), dim=128, tile_m=128),
    "band, ordered": Spec((150, 300), (330, 270), 2, 1, dim=128, tile_m=128, mask="causal", deterministic=True),
    "bits, a soft cap, split": Spec(
        (300, 70), (260, 130), 4, 2, dim=64, tile_m=128, mask="random", softcap=1.5, group_split=2
    ),
    "window, packed": Spec((200, 0, 130), (260, 5, 70), 2, 2, dim=128, tile_m=64, mask="window", packed=True),
    "intervals, float16, a view": Spec(
        (200,), (260,), 2, 1, dim=56, tile_m=128, mask="documents", dtype=torch.float16, view=True
    ),
    "more blocks than the entry buffer holds": Spec(
        (64 * 70 + 1,), (130,), 2, 1, dim=64, tile_m=64, deterministic=True, group_split=1
    ),
    "head dim 72, ordered": Spec((150, 300), (330, 270), 2, 1, dim=72, tile_m=128, mask="random", deterministic=True),
    "head dim 24, a soft cap, split": Spec(
        (300, 70), (260, 130), 4, 2, dim=24, tile_m=128, mask="random", softcap=1.5, group_split=2
    ),
    "runs of tiles, head dim 96": Spec((1500, 300), (1400, 300), dim=96, tile_m=128, mask="causal"),
    "float32": Spec((140,), (130,), 2, 1, dim=120, tile_m=128, mask="random", float32=True),
    "runs of tiles": Spec((800,), (150,), 2, 1, dim=128, tile_m=128, tuning=WITH_RUNS),
    "runs of tiles, causal": Spec((1500, 300), (1400, 300), dim=128, tile_m=128, mask="causal"),
    "runs of tiles, three windows of pieces, packed": Spec(
        (1300, 650), (260, 140), 8, 1, dim=128, tile_m=128, packed=True, tuning=WITH_RUNS
    ),
    "runs of tiles, split, float16, a view": Spec(
        (1290,),
        (128,),
        4,
        1,
        dim=104,
        tile_m=128,
        dtype=torch.float16,
        view=True,
        group_split=2,
        tuning=DEEP_RUNS,
    ),
    **ORDERED_RUNS,
    # of five entries of two heads the first and the last are four tiles apart, as in a run
    "runs of tiles, two heads of eight": Spec(
        (1024,), (256,), 2, 1, dim=128, tile_m=128, group_split=1, tuning=WITH_RUNS
    ),
    "ordered, no run": Spec(
        (130,), (384,), 2, 1, dim=128, tile_m=128, whole=True, deterministic=True, tuning=WITH_RUNS
    ),
    "two buffers of dQ": Spec((300, 130), (330, 140), 2, 1, dim=128, tile_m=128, mask="random", deterministic=True),
    # 5 or 3 steps of each tile of keys: the next one begins with the other buffer
    "two buffers of dQ, tiles of 64 queries, packed": Spec(
        (300, 130), (330, 140), 2, 2, dim=128, tile_m=64, deterministic=True, packed=True
    ),
    "two buffers of dQ, none of the step before": Spec(
        (300, 130), (330, 140), 2, 1, dim=128, tile_m=128, deterministic=True, tuning=(("delays", 0), ("stages_dq", 2))
    ),
    "two buffers of dQ, atomic": Spec((300, 130), (330, 140), 2, 2, dim=128, tile_m=64, tuning=(("stages_dq", 2),)),
    "two buffers of dQ, a soft cap": Spec(
        (300, 130), (330, 140), 2, 1, dim=128, tile_m=128, mask="random", softcap=1.5, deterministic=True
    ),
    "one buffer of dQ, as asked": Spec(
        (300, 130), (330, 140), 2, 1, dim=128, tile_m=128, mask="random", deterministic=True, tuning=(("stages_dq", 1),)
    ),
    "no runs, as asked": Spec((700,), (130,), 2, 1, dim=128, tile_m=128, tuning=(("runs", 0),)),
    "no runs with a soft cap": Spec((700,), (130,), 2, 1, dim=128, tile_m=128, softcap=1.5),
    "no keys": Spec((100, 60), (0, 60), dim=64, tile_m=64, mask="causal", packed=True),
}
