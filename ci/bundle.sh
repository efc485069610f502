#!/usr/bin/env bash
# Packs wheels, compiled kernels and cases for a GPU host without a network, into one archive:
#   ci/bundle.sh OUT.tar.xz [--host-has FREEZE.txt] [--python 3.12] [--extra NAME] [--arch ARCH]… [--target NAME]…
#                [--cases N] [--seed S] [--small]
# --host-has: `pip list --format=freeze` of the host; what it has is not packed, and versions follow it.
# --small: wheels are stored without compression in an xz archive with the x86 filter: smaller, some minutes more.
# On the host: tar xf OUT.tar.xz && attnfuzz-bundle/try.sh (or install.sh alone).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${1:?OUT.tar.xz}"); shift
python=${PYTHON:-$here/.venv/bin/python} version=3.12 extra="" has="" cases=200 seed=7 small=no archs=() targets=()
while (($#)); do
    case $1 in
        --host-has) has=$(realpath "$2"); shift ;;
        --python) version=$2; shift ;;
        --extra) extra="[$2]"; shift ;;
        --arch) archs+=("$2"); shift ;;
        --target) targets+=("$2"); shift ;;
        --cases) cases=$2; shift ;;
        --seed) seed=$2; shift ;;
        --small) small=yes ;;
        *) echo "bundle: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done
((${#archs[@]})) || archs=(sm_90a sm_100a)
((${#targets[@]})) || targets=(blocksparse)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
bundle=$work/attnfuzz-bundle
mkdir -p "$bundle/wheels" "$bundle/src"
cd "$here"

echo "::: wheels"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$bundle/wheels" .
platforms=(); for glibc in 39 35 34 31 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
for_host=(--only-binary=:all: --implementation cp --python-version "$version" "${platforms[@]}"
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64)
"$python" ci/bundle_wheels.py constraints constraints.txt "$has" > "$work/constraints.txt"
"$python" -m pip install --quiet --dry-run --ignore-installed --target "$work/none" --report "$work/report.json" \
    -c "$work/constraints.txt" "${for_host[@]}" "$(echo "$bundle"/wheels/attnfuzz-*.whl)$extra"
"$python" ci/bundle_wheels.py missing "$work/report.json" "$has" > "$bundle/wheels.txt"
"$python" -m pip download --quiet --no-deps "${for_host[@]}" --dest "$bundle/wheels" -r "$bundle/wheels.txt"

echo "::: kernels"
options=(); for arch in "${archs[@]}"; do options+=(--arch "$arch"); done
for target in "${targets[@]}"; do options+=(--target "$target"); done
"$python" -m fuzz.cli compile --device cuda "${options[@]}" --cases "$cases" --seed "$seed" --cache "$bundle/kernels"

echo "::: sources, cases and tests"
git archive HEAD | tar -x -C "$bundle/src"

site=""; [[ -n $has ]] && site=--system-site-packages
cat > "$bundle/install.sh" << END
#!/usr/bin/env bash
# Installs into .venv beside this file; needs Python $version and no network.
set -euo pipefail
cd "\$(dirname "\$0")"
[[ -x .venv/bin/python ]] || "\${PYTHON:-python3}" -m venv $site .venv
.venv/bin/python -m pip install --quiet --no-index --no-deps wheels/*.whl
echo 'export ATTNFUZZ_CACHE='"\$PWD"'/kernels PATH='"\$PWD"'/.venv/bin:\$PATH' > activate
echo "next: . \$PWD/activate && cd \$PWD/src && attnfuzz doctor"
END
cat > "$bundle/try.sh" << END
#!/usr/bin/env bash
# Installs, and shows that the kernels came along: a session finds them compiled. Ends with the first failure.
set -euo pipefail
here=\$(cd "\$(dirname "\$0")" && pwd)
"\$here/install.sh"
. "\$here/activate"
cd "\$here/src"
attnfuzz doctor || true
before=\$(find "\$ATTNFUZZ_CACHE" -type f | wc -l)
code=0
attnfuzz run --device "\${DEVICE:-cuda}" --target ${targets[*]/%/ --target} --cases $cases --seed $seed --ledger none \\
    --output-dir "\$here/session" --corpus "\$here/findings" || code=\$?
echo "files in the cache: \$before before, \$(find "\$ATTNFUZZ_CACHE" -type f | wc -l) after; exit code \$code"
((code <= 1))
END
sed -i 's/ --target --cases/ --cases/' "$bundle/try.sh"
chmod +x "$bundle/install.sh" "$bundle/try.sh"

echo "::: archive"
if [[ $small == yes ]]; then
    "$python" ci/bundle_wheels.py store "$bundle"/wheels/*.whl
    tar -C "$work" -cf - attnfuzz-bundle | xz --x86 --lzma2=preset=9e,dict=256MiB -T1 > "$out"
else
    tar -C "$work" -cf - attnfuzz-bundle | xz -2 -T0 > "$out"
fi
ls -l "$out"
