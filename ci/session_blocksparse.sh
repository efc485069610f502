#!/usr/bin/env bash
# The long session of blocksparse on a GPU machine.  ci/session_blocksparse.sh FOLDER [CASES] [SECONDS] [SEED]
# Deterministic cases run 20 times; one case in eight has more CTAs than the GPU holds. A short session comes first: where
# many of its cases fail, the long one would say nothing more. FOLDER gets session.txt, session.tgz (records, findings)
# and summary.json, the form of ci/results/blocksparse_session_h200.json.
set -u
out=${1:?a folder for the results} cases=${2:-5000} seconds=${3:-290} seed=${4:-61}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
options=(--device cuda --target blocksparse --size small --jobs 16 --no-minimize)
python3 -m fuzz.cli.main run "${options[@]}" --cases 48 --seed 5 --corpus "$work/none" --output-dir "$work/short" > "$out/short.txt" 2>&1
new=$(grep -c "^NEW" "$out/short.txt")
if [ "$new" -gt 3 ]; then
    echo "$new findings in 48 cases:"
    grep "^NEW" "$out/short.txt" | sort | uniq -c | head -5
    exit 1
fi
python3 -m fuzz.cli.main run "${options[@]}" --cases "$cases" --seed "$seed" --max-time "$seconds" --repeats-deterministic 20 \
    --corpus corpus/regressions --output-dir "$work/session" > "$out/session.txt" 2> "$out/session.err"
code=$?
tar -C "$work" -czf "$out/session.tgz" session
python3 ci/summarise_blocksparse.py "$work/session" --out "$out/summary.json" > /dev/null || code=$?
exit $code
