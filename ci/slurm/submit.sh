#!/usr/bin/env bash
# One night on a Slurm cluster: compile on a CPU node, an array of sessions, one a GPU, then the ledger and the site.
#   ci/slurm/submit.sh [GPUS]                      from a checkout on a shared file system, with .venv made by `make install`
# Variables: NIGHT SEED CASES (of each GPU) ARCH TARGETS MINUTES; CPU_ARGS, GPU_ARGS for sbatch (partition, account).
# A job that was preempted or lost its node is requeued, and its session goes on. Called again it goes on as well.
set -euo pipefail
cd "$(dirname "$0")/../.."
export NIGHT=${NIGHT:-$(date -u +%F)} SEED=${SEED:-$(date -u +%Y%m%d)} CASES=${CASES:-5000} ARCH=${ARCH:-sm_100a}
export TARGETS=${TARGETS:-blocksparse} MINUTES=${MINUTES:-120}
export FOLDER=${FOLDER:-$PWD/.attnfuzz/slurm/$NIGHT} ATTNFUZZ=${ATTNFUZZ:-$PWD/.venv/bin/attnfuzz}
export ATTNFUZZ_CACHE=${ATTNFUZZ_CACHE:-$PWD/.attnfuzz/kernels}
gpus=${1:-8}
mkdir -p "$FOLDER/logs"
read -ra cpu <<< "${CPU_ARGS:-}"
read -ra gpu <<< "${GPU_ARGS:-}"
common=(--parsable --requeue --export=ALL --chdir "$PWD" --output "$FOLDER/logs/%x-%a.log")
compile=$(sbatch "${common[@]}" "${cpu[@]}" --array "0-$((gpus - 1))" ci/slurm/compile.sbatch)
fuzz=$(sbatch "${common[@]}" "${gpu[@]}" --dependency "afterany:${compile%%;*}" --array "0-$((gpus - 1))" --time "$((MINUTES + 45))" ci/slurm/fuzz.sbatch)
report=$(sbatch "${common[@]}" "${cpu[@]}" --dependency "afterany:${fuzz%%;*}" ci/slurm/report.sbatch)
echo "compile $compile, fuzz $fuzz, report $report: $FOLDER"
