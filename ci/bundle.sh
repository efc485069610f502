#!/usr/bin/env bash
# Packs wheels, compiled kernels and cases for a GPU host without a network (x86-64, Linux) into one archive:
#   ci/bundle.sh OUT.tar.xz --host HOST.txt [--python 3.12] [--without NAME]… [--add REQUIREMENT]…
#                [--arch ARCH]… [--target NAME]… [--cases N] [--seed S] [--fast] [--split SIZE]
# --host     `python3 -m pip list --format=freeze` of the host: what it has is not packed. It must have torch and Triton.
# --without  a package to leave out, as nvidia-cutlass-dsl: 53 of 65 MB; without it `blocksparse` does not run
# --add      a package that the project does not need itself, as flash-attn-4
# --arch, --target, --cases, --seed   the session whose kernels are compiled (sm_90a, blocksparse, 100, 7)
# --fast     a larger archive, minutes sooner
# --split    parts of at most SIZE ('32M'), OUT.tar.xz.00 and so on, where a transfer has a limit: cat OUT.tar.xz.* | tar xJ
# On the host: tar xf OUT.tar.xz && attnfuzz-bundle/install.sh && attnfuzz-bundle/try.sh
set -euo pipefail
usage() { sed -n '2,12s/^# \?//p' "$0"; }
out="" host="" version=3.12 cases=100 seed=7 fast="" size="" archs=() targets=() wheels=() without=""
while (($#)); do
    case $1 in
        --host) host=$(realpath "$2"); shift ;;
        --python) version=$2; shift ;;
        --without) wheels+=("$1" "$2"); without+=" $2"; shift ;;
        --add) wheels+=("$1" "$2"); shift ;;
        --arch) archs+=("$1" "$2"); shift ;;
        --target) targets+=("$1" "$2"); shift ;;
        --cases) cases=$2; shift ;;
        --seed) seed=$2; shift ;;
        --fast) fast=yes ;;
        --split) size=$2; shift ;;
        -h | --help) usage; exit ;;
        -*) echo "bundle: unknown option $1" >&2; exit 2 ;;
        *) out=$(realpath -m "$1") ;;
    esac
    shift
done
[[ -n $out && -n $host ]] || { usage >&2; exit 2; }
((${#archs[@]})) || archs=(--arch sm_90a)
((${#targets[@]})) || targets=(--target blocksparse)
cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/attnfuzz-bundle
mkdir -p "$bundle/src"

echo "::: the project's files"
# The commit, not the folder: the keys of the kernels have to be those of the wheel. setuptools writes beside what it builds.
mkdir "$work/build"
git archive HEAD | tar -x -C "$work/build"
git archive HEAD corpus pyproject.toml README.md LICENSE | tar -x -C "$bundle/src"
commit=$(git rev-parse HEAD)
"$python" -m pip wheel -qq --no-deps --wheel-dir "$work" "$work/build"

echo "::: wheels that the host lacks"
[[ -n $fast ]] || wheels+=(--store)
"$python" ci/bundle_wheels.py "$work"/attnfuzz-*.whl --host "$host" --python "$version" "${wheels[@]}" \
    --out "$bundle/wheels" | tee "$bundle/wheels.txt"

echo "::: kernels"
if [[ " $without " == *" nvidia-cutlass-dsl "* ]]; then
    echo "none: the host could not load them without nvidia-cutlass-dsl"
    mkdir "$bundle/kernels"
else
    (cd "$work/build" && "$python" -m fuzz.cli compile --device cuda "${archs[@]}" "${targets[@]}" --cases "$cases" \
        --seed "$seed" --cache "$bundle/kernels")
fi
chmod -R go-w "$bundle/kernels"

echo "::: scripts"
cp ci/bundle/*.sh "$bundle/"
printf '%s=%q\n' COMMIT "$commit" VERSION "$version" TARGETS "${targets[*]}" CASES "$cases" SEED "$seed" > "$bundle/settings"

echo "::: archive"
if [[ -n $fast ]]; then compress=(xz -1 -T0); else compress=(xz --x86 "--lzma2=preset=9e,dict=256MiB" -T1); fi
tar -C "$work" --owner=0 --group=0 -cf - attnfuzz-bundle | "${compress[@]}" > "$out"
if [[ -n $size ]]; then
    rm -f "$out".[0-9][0-9]
    split --numeric-suffixes --bytes "$size" "$out" "$out."
    rm "$out"
fi
ls -l "$out"*
