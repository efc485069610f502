"""kernels.blocksparse gives users what they need by name, and imports nothing heavy before it is asked for."""

import subprocess
import sys

import pytest

import kernels.blocksparse


def test_every_public_name_is_there():
    for name in kernels.blocksparse.__all__:
        assert callable(getattr(kernels.blocksparse, name)), name
        assert getattr(kernels.blocksparse, name).__name__ == name or name == "block_sparse_attention"
        assert name in dir(kernels.blocksparse)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = kernels.blocksparse.nothing


def test_the_package_alone_imports_neither_torch_nor_cutlass():
    program = "import sys, kernels.blocksparse; print({'torch', 'cutlass'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
