"""Where the kernels of other projects lie: a folder of checkouts outside this repository. See README.md beside it."""

import os
from pathlib import Path


def checkout(file: str) -> Path:
    """The path of `file` ('repository/path') in the folder that FOREIGN_KERNELS names.

    Raises ImportError that says what to fetch where it is not there.
    """
    folder = os.environ.get("FOREIGN_KERNELS", "")
    path = Path(folder, file).resolve()
    if not folder or not path.exists():
        raise ImportError(
            f"{file} is not in FOREIGN_KERNELS={folder!r}: fetch it first, see ci/foreign_kernels/README.md"
        )
    return path
