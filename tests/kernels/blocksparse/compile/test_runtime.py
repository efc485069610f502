"""Calling compiled functions: values arrive as they were given, each function is made once, sources can be replaced."""

import ctypes
import threading

import pytest
import torch

from kernels.blocksparse.compile import runtime
from kernels.blocksparse.spec.signature import ARGUMENTS, DATA
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

FORWARD = Variant("forward", "bfloat16", 64)


@pytest.fixture
def capability(monkeypatch):
    """Sets the compute capability that the device claims to have."""
    runtime.arch_of.cache_clear()
    yield lambda found: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)
    runtime.arch_of.cache_clear()


C_TYPES = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float}


class Compiled:
    """Stands for a compiled function: reads its arguments as the C function does, and returns a code of its own."""

    def __init__(self, kinds, code=0):
        self.kinds, self.code, self.calls = kinds, code, []

    def to(self, device):
        return self

    def capi_func(self, packed):
        read = [
            C_TYPES.get(kind, ctypes.c_uint64).from_address(at).value
            for kind, at in zip(self.kinds, packed[:-1], strict=True)
        ]
        ctypes.c_int32.from_address(packed[len(self.kinds)]).value = self.code
        self.calls.append(read)


@pytest.mark.parametrize("kind", sorted(ARGUMENTS))
def test_values_arrive_in_order_and_whole(kind):
    signature = ARGUMENTS[kind]
    given = {DATA: 2**47 + 16, "int32": -7, "int64": -(2**40), "float32": 0.15625}
    values = [given.get(type_, 2**46 + 4 * i) for i, (_, type_) in enumerate(signature)] + [2**45]
    compiled = Compiled([type_ for _, type_ in signature] + ["stream"])
    products = "wgmma" if kind == "dq" else "mma"
    runtime.Function(compiled, Variant(kind, "bfloat16", 64, products=products))(*values)
    assert compiled.calls == [values]


def test_a_failed_launch_is_raised_with_its_code():
    signature = ARGUMENTS["forward"]
    compiled = Compiled([type_ for _, type_ in signature] + ["stream"], code=719)
    with pytest.raises(RuntimeError, match="719"):
        runtime.Function(compiled, FORWARD)(*[0] * (len(signature) + 1))


def test_a_wrong_number_of_values_is_refused():
    compiled = Compiled([])
    with pytest.raises(Exception, match="expected"):
        runtime.Function(compiled, FORWARD)(1, 2, 3)
    assert not compiled.calls


def test_a_function_is_made_once_for_each_variant_arch_and_injection():
    made = []

    def source(variant, arch, injection):
        made.append((variant, arch, injection))
        return Compiled([])

    planted = Injection("one", {"correction": max})
    with runtime.use_source(source):
        keys = [(FORWARD, "sm_80", NO_INJECTION), (FORWARD, "sm_90a", NO_INJECTION), (FORWARD, "sm_80", planted)]
        keys.append((FORWARD.with_tuning(stages=1), "sm_80", NO_INJECTION))
        found = [runtime.function(*key) for key in keys for _ in range(2)]
        assert made == keys
        assert len(set(map(id, found))) == len(keys)


def test_threads_that_ask_at_once_wait_for_one_build():
    made, start = [], threading.Barrier(4)

    def source(variant, arch, injection):
        made.append(variant)
        return Compiled([])

    def ask():
        start.wait()
        runtime.function(FORWARD, "sm_80")

    with runtime.use_source(source):
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == [FORWARD]


def test_functions_of_another_source_are_not_kept():
    with runtime.use_source(lambda *key: Compiled([])):
        inner = runtime.function(FORWARD, "sm_80")
        with runtime.use_source(lambda *key: Compiled([])):
            assert runtime.function(FORWARD, "sm_80") is not inner
        assert runtime.function(FORWARD, "sm_80") is inner


def test_an_artifact_that_is_not_there_is_named(tmp_path):
    with runtime.use_source(runtime.artifact_source(tmp_path)), pytest.raises(FileNotFoundError, match=r"sm_80\.o"):
        runtime.function(FORWARD, "sm_80")


@pytest.mark.parametrize(
    ("found", "arch"),
    [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120a")],
)
def test_devices_have_the_arch_that_is_built_for_them(capability, found, arch):
    capability(found)
    assert runtime.arch_of(torch.device("cuda", 0)) == arch


@pytest.mark.parametrize("found", [(7, 5), (10, 1), (11, 0)])
def test_devices_without_a_build_are_refused(capability, found):
    capability(found)
    with pytest.raises(ValueError, match="compute capability"):
        runtime.arch_of(torch.device("cuda", 0))
