"""blocksparse on the emulated GPU: kernels compiled for a GPU, run on a CPU."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fuzz.compiling import obtain
from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import Text
from fuzz.core.target import Device, DeviceError, Execution, Tensors
from fuzz.devices.emulator.config import AS_WRITTEN, DEFAULT_CHECKS
from fuzz.targets.blocksparse import cta_subset, long_lists
from fuzz.targets.blocksparse.block_lists import options_of
from fuzz.targets.blocksparse.case_blocks import CaseBlocks, case_blocks
from fuzz.targets.blocksparse.devices import SLOTS, connect, emulated, emulator_of
from fuzz.targets.blocksparse.hang_report import hanging_emulated
from fuzz.targets.blocksparse.script import blocksparse_text
from fuzz.targets.blocksparse.target import BlockSparseTarget
from fuzz.targets.blocksparse.variants import variants_for
from kernels.blocksparse.spec.variant import Variant, arch_for_products
from oracles.metamorphic.relations import Equality
from oracles.outputs import Outputs
from oracles.problem import AnyProblem


class EmulatedBlockSparse(BlockSparseTarget):
    """kernels.blocksparse, or one of its mutants, on the emulated GPU. Each repeat runs its warps in another order."""

    device: Device = "emulator"
    executable = True
    runs_cta_subsets = True
    relations: Mapping[str, Equality] = {
        **BlockSparseTarget.relations,
        "two_forwards": "off",
    }  # a run has one hang to explain
    session_size = Size(1 << 17, 4, 1 << 13, 1 << 19)  # 0.3 s a case; lists of more than 64 blocks among them
    _prepared: CaseBlocks | None = None
    _repeat = 0

    def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
        """See BlockSparseTarget; with the number of resident CTAs and the order of warps."""
        return variants_for(problem, emulated=True)

    def arch_of(self, variant: Variant, arch: str) -> str:
        """What a kernel is compiled for: the emulated GPU runs those of every arch."""
        return arch_for_products(variant.products, arch)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles or loads every kernel that the case launches; keeps what explains a hang."""
        super().prepare(case, tensors)
        connect(self.device)
        self._prepared = case_blocks(case, self.mutant)
        self._prepared.calls(tensors.q.device)
        self._repeat = 0

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget. Raises DeviceError for what the emulated GPU finds."""
        options = options_of(case)
        emulated().begin(emulator_of(options, self._repeat))
        self._repeat += 1
        try:
            return super().run(case, tensors)
        except DeviceError as error:
            visits, resident = None, int(options.get("slots", SLOTS))
            if self._prepared is not None:
                visits, resident = self._prepared.expected_visits, max(resident // self._prepared.ctas_of_tile, 1)
            raise hanging_emulated(error, visits, resident) from error

    def script_call(self, case: Case) -> Text:
        """`forward` as text, on the emulated GPU that the case's options name."""
        text = blocksparse_text(case, self.mutant)
        made = emulator_of(options_of(case))
        given = {name: getattr(made, name) for name in ("resident_ctas", "warp_schedule", "seed")}
        if made.contraction != AS_WRITTEN:
            given["contraction"] = made.contraction
        settings = "".join(f", {name}={value!r}" for name, value in given.items())
        setup = "from fuzz.devices.emulated import on_emulated_gpu  # noqa: E402"
        if more := sorted(made.checks - DEFAULT_CHECKS):
            setup += "\nfrom fuzz.devices.emulator.config import DEFAULT_CHECKS  # noqa: E402"
            settings += f", checks=DEFAULT_CHECKS | {{{', '.join(map(repr, more))}}}"
        return replace(text, setup=f"{text.setup}\n{setup}", emulated=f'on_emulated_gpu("{self.arch()}"{settings})')

    @contextmanager
    def blind(self) -> Iterator[None]:
        """See Target."""
        emulated().blind = True
        try:
            yield
        finally:
            emulated().blind = False

    def launched(self) -> Iterable[str]:
        """See BlockSparseTarget."""
        return emulated().launched

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        p = case.problem
        tiles = p.heads_q * sum((q // 64 + 1) * (k // 64 + 1) for q, k in zip(p.lengths_q, p.lengths_k, strict=True))
        return 1.0 + 0.2 * tiles * (5 if p.backward else 1)

    def trace_to(self, path: str) -> None:
        """See Target."""
        emulated().trace_to(path)

    def prepare_cta_subset(self, case: Case) -> None:
        """See Target."""
        for build in self.builds(case, self.arch()):
            obtain(build)
        connect(self.device)
        _ = case_blocks(case, self.mutant).launched

    def run_cta_subset(self, case: Case, tensors: Tensors, into: Outputs, repeat: int) -> Execution:
        """See Target."""
        from kernels.blocksparse.spec.injection import find_injections

        launched = case_blocks(case, self.mutant).launched
        return Execution(into, cta_subset.run(case, tensors, into, repeat, launched, find_injections(self.injection)))

    def seed_cases(self) -> tuple[Case, ...]:
        """See Target."""
        return (*long_lists.seed_cases(self.name), *cta_subset.seed_cases(self.name))

    def draw_cta_subset(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target."""
        return cta_subset.draw_case(draw, self.name, repeats)
