#!/usr/bin/env bash
# The saved cases, then a session, on DEVICE (cuda); what came out goes into OUT (the folder that this is called in).
# Exit code: 0, or 1 for findings.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings"
. "$here/activate"
device=${DEVICE:-cuda} out=${OUT:-$PWD} cases=${CASES_RUN:-$CASES} code=0
mkdir -p "$out"
cd "$here/src"
python - << 'END'
import fuzz, torch
print(f"fuzz from {fuzz.__file__}; torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPUs")
END
attnfuzz doctor || true
echo "::: saved cases"
python -m pytest -q -p no:cacheprovider -n "${JOBS:-auto}" corpus || code=$?
echo "::: session"
count() { { find "$ATTNFUZZ_CACHE/artifacts" -mindepth 1 -maxdepth 1 2> /dev/null || true; } | wc -l; }
before=$(count)
read -ra targets <<< "$TARGETS"
ran=0
attnfuzz run --device "$device" "${targets[@]}" --cases "$cases" --seed "$SEED" --ledger "$out/ledger.sqlite" \
    --output-dir "$out/session" --corpus "$out/regressions" || ran=$?
echo "kernels: $before came in the bundle, $(($(count) - before)) compiled here"
((ran <= 1)) || exit "$ran"
attnfuzz export "$out/session.jsonl.gz" --ledger "$out/ledger.sqlite"
echo "saved cases: exit code $code; session: exit code $ran; for the ledger at home: $out/session.jsonl.gz"
((code == 0 || code == 5)) || exit "$code"
exit "$ran"
