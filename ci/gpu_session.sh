#!/usr/bin/env bash
# A session over every target on a GPU machine, target by target, with what each found.  ci/gpu_session.sh CASES WORKERS [SEED]
set -u
cases=${1:-300} workers=${2:-16} seed=${3:-0}
for target in torch.sdpa.math torch.sdpa.flash torch.sdpa.efficient torch.sdpa.cudnn sdpa; do
    echo "== $target"
    timeout 100 python3 -m fuzz.cli.main run --device cuda --target "$target" --cases "$cases" --jobs "$workers" \
        --seed "$seed" --size small --corpus corpus/regressions --no-minimize
done
