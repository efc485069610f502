#!/usr/bin/env bash
# Installs the bundle into .venv beside this file, without a network; $PYTHON (python3) is the one that has torch.
set -euo pipefail
cd "$(dirname "$0")"
. ./settings
python=${PYTHON:-python3}
"$python" -c "import sys, torch; v = '%d.%d' % sys.version_info[:2]; sys.exit(v != '$VERSION' and f'install: $python is {v}, the bundle is for $VERSION')"
[[ -x .venv/bin/python ]] || "$python" -m venv --without-pip .venv
# The packages of $python, after those of .venv. --system-site-packages has them not where $python is in a venv itself.
site=$(.venv/bin/python -c "import site; print(site.getsitepackages()[0])")
"$python" - << 'END' > "$site/host.pth"
import site
for path in site.getsitepackages():
    print(f"import site; site.addsitedir({path!r})")
END
"$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check --no-index --no-deps --no-compile wheels/*.whl
cat > activate << END
export ATTNFUZZ_CACHE=$PWD/kernels PATH=$PWD/.venv/bin:\$PATH
END
.venv/bin/python - << 'END'
from importlib.metadata import PackageNotFoundError, requires, version
from packaging.requirements import Requirement

for line in requires("attnfuzz") or []:
    one = Requirement(line)
    if one.marker is None or one.marker.evaluate({"extra": ""}):
        try:
            there = version(one.name)
        except PackageNotFoundError:
            there = ""
        if not there or not one.specifier.contains(there, prereleases=True):
            print(f"install: {one.name} {there or 'is missing'}; needed: {one}")
END
echo "installed; next: . $PWD/activate && attnfuzz doctor"
