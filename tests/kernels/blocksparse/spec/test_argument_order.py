"""The arguments of the kernels are ordered by name, in one place; a name that is missing or unknown is an error."""

import ast
import inspect

import pytest

from kernels.blocksparse.backward import Backward
from kernels.blocksparse.backward.postprocess import Postprocess
from kernels.blocksparse.backward.preprocess import Preprocess
from kernels.blocksparse.common import arguments
from kernels.blocksparse.common.split_tiles import split_tiles_of
from kernels.blocksparse.dq_by_queries.kernel import DQByQueries
from kernels.blocksparse.forward.kernel import Forward
from kernels.blocksparse.spec.signature import ARGUMENTS, ordered

KERNELS = {
    "forward": Forward,
    "preprocess": Preprocess,
    "dq": DQByQueries,
    "backward": Backward,
    "postprocess": Postprocess,
}


def named(kind):
    """A value for each argument, its position in the signature; in alphabetical order."""
    names = [name for name, _ in ARGUMENTS[kind]]
    return dict(sorted(zip(names, range(len(names)), strict=True)))


@pytest.mark.parametrize("kind", sorted(ARGUMENTS))
def test_values_are_ordered_by_name(kind):
    assert ordered(kind, named(kind)) == tuple(range(len(ARGUMENTS[kind])))


@pytest.mark.parametrize("kind", sorted(ARGUMENTS))
def test_a_missing_and_an_unknown_value_are_named(kind):
    values = named(kind)
    del values["dim"]
    with pytest.raises(ValueError, match=rf"the {kind} kernel: missing \['dim'\], unknown \[\]"):
        ordered(kind, values)
    with pytest.raises(ValueError, match=r"missing \['dim'\], unknown \['dimension'\]"):
        ordered(kind, values | {"dimension": 64})
    with pytest.raises(ValueError, match=r"missing \[\], unknown \['dimension'\]"):
        ordered(kind, named(kind) | {"dimension": 64})


@pytest.mark.parametrize("kind", sorted(ARGUMENTS))
def test_every_argument_has_a_name_of_its_own(kind):
    names = [name for name, _ in ARGUMENTS[kind]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_the_entry_function_takes_the_arguments_of_the_signature(kind):
    taken = list(inspect.signature(KERNELS[kind].__call__).parameters)
    assert taken == ["self", *(name for name, _ in ARGUMENTS[kind]), "stream"]


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_the_entry_function_reads_every_argument(kind):
    """By attribute, or as a tensor, a block list or the mask, which have helpers of their own, or a method named so;
    which tiles are split, in kernels that may split them."""
    source = inspect.getsource(inspect.getmodule(KERNELS[kind]))
    (tree,) = (node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == "__call__")
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is(node.value, "a")}

    class Name(str):
        def align(self, _):
            return self

    class Recorder:
        def __getattr__(self, name):
            read.add(name)
            return Name(name)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _is(node.args[0], "a"):
            helper = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            of = arguments if hasattr(arguments, helper) else inspect.getmodule(KERNELS[kind])
            bound = [] if hasattr(of, helper) else [None]
            function = getattr(of if hasattr(of, helper) else KERNELS[kind], helper)
            function(*bound, Recorder(), *(ast.literal_eval(one) for one in node.args[1:]))
    if kind in ("forward", "backward"):
        split_tiles_of(Recorder())
    assert read == {name for name, _ in ARGUMENTS[kind]}


def _is(node, name):
    return isinstance(node, ast.Name) and node.id == name
