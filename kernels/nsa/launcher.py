"""Launchers: what the passes launch their kernels through, so that a call can also be planned without running it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from kernels.blocksparse.launch import backward as launch_backward
from kernels.blocksparse.launch import forward as launch_forward
from kernels.blocksparse.launch.backward_tuning import keys_of
from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant
from kernels.sdpa.launch import Launch

Three = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Launcher:
    """Launches on the tensors' device and its current stream.

    products  of the attention kernels; None: the fastest on the tensors' device
    """

    products: str | None = None

    def triton(self, launch: Launch) -> None:
        """Launches a Triton kernel."""
        launch.run()

    def forward(
        self,
        inputs: Three,
        outputs: tuple[Tensor, Tensor],
        where: Sequences,
        blocks: BlockSparse,
        scale: float,
        injection: Injection = NO_INJECTION,
    ) -> None:
        """Launches attention. inputs: (q, k, v); outputs: (out, lse). See `kernels.blocksparse.launch.forward`."""
        launch_forward.forward(
            *inputs, *outputs, where, blocks, scale=scale, injection=injection, products=self.products
        )

    def may_separate_dq(self, q: Tensor, tile_m: int, tile_n: int) -> bool:
        """See `kernels.blocksparse.launch.backward`."""
        return launch_backward.may_separate_dq(q, tile_m, tile_n, self.products)

    def backward(
        self,
        inputs: Three,
        outputs: Three,
        gradients: Three,
        where: Sequences,
        blocks: BlockSparse,
        scale: float,
        deterministic: bool,
        group_split: int | None = None,
        separate_dq: bool = False,
        injection: Injection = NO_INJECTION,
    ) -> None:
        """Launches attention's backward pass. outputs: (out, lse, their gradient); gradients: float32 (dq, dk, dv);
        group_split, separate_dq: see `kernels.blocksparse.launch.backward`."""
        launch_backward.backward(
            *gradients,
            *inputs,
            *outputs,
            where,
            blocks,
            scale=scale,
            deterministic=deterministic,
            group_split=group_split,
            separate_dq=separate_dq,
            injection=injection,
            products=self.products,
        )


@dataclass(frozen=True)
class Plan(Launcher):
    """A launcher that launches nothing, and notes what would be launched.

    launches  of Triton kernels, in order
    variants  of the kernels of kernels.blocksparse, each once
    """

    launches: list[Launch] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)

    def triton(self, launch: Launch) -> None:
        """See Launcher."""
        self.launches.append(launch)

    def forward(
        self,
        inputs: Three,
        outputs: tuple[Tensor, Tensor],
        where: Sequences,
        blocks: BlockSparse,
        scale: float,
        injection: Injection = NO_INJECTION,
    ) -> None:
        """See Launcher."""
        self._note(launch_forward.forward_variant(inputs[0], blocks, products=self.products))

    def backward(
        self,
        inputs: Three,
        outputs: Three,
        gradients: Three,
        where: Sequences,
        blocks: BlockSparse,
        scale: float,
        deterministic: bool,
        group_split: int | None = None,
        separate_dq: bool = False,
        injection: Injection = NO_INJECTION,
    ) -> None:
        """See Launcher."""
        found = launch_backward.backward_variants(
            inputs[0],
            blocks,
            deterministic=deterministic,
            products=self.products,
            float32=True,
            separate_dq=separate_dq,
            keys=keys_of(where),
        )
        self._note(*found)

    def _note(self, *variants: Variant) -> None:
        self.variants.extend(variant for variant in variants if variant not in self.variants)


LAUNCHER = Launcher()
