"""A case's inputs as text: the same numbers as fuzz/tensors/values.py makes, in the same strides as
fuzz/tensors/arena.py lays them."""

from __future__ import annotations

import base64
import inspect
import textwrap
import zlib

from msgspec.structs import replace

import fuzz.tensors.values as values
from fuzz.core.case import CODED, Case, Storage
from fuzz.core.script_call import ScriptError
from fuzz.targets.user_function.source_excerpt import excerpt
from fuzz.tensors.sparse_values import EVEN, OTHER, SPREAD
from oracles.problem import shapes

_UNPACK = '''\
def written(shape, text):
    """float32 numbers that were written down: attention over them is exact, so any difference is an error."""
    numbers = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(numbers, dtype=torch.float32).view(shape).to(DEVICE)'''

WRITTEN = 4096  # numbers of one tensor that a script may hold
_LAY = '''\
def lay(x, order, pad=0, offset=0):
    """x with its axes in memory in `order`, slowest first; `pad` elements unused after each run (NaN)."""
    names = "{names}"
    axes = [names.index(axis) for axis in order if axis in names]
    sizes = [x.shape[axis] for axis in axes]
    count = offset + math.prod(sizes[:-1]) * (sizes[-1] + pad)
    y = torch.full((count,), float("nan"), dtype=x.dtype, device=DEVICE)
    y = y[offset:].view(*sizes[:-1], sizes[-1] + pad)[..., : sizes[-1]]
    y = y.permute([axes.index(axis) for axis in range(len(names))])
    return y.copy_(x)'''

_GUARDED = '''\
def guarded(x):
    """x in the middle of a buffer of 0xFF bytes, and that buffer."""
    size = x.numel() * x.element_size()
    memory = torch.full((8192 + size + 8192,), 0xFF, dtype=torch.uint8, device=DEVICE)
    y = memory[8192 : 8192 + size].view(x.dtype).view(x.shape)
    return y.copy_(x), memory'''


def names(case: Case) -> list[str]:
    """The tensors of a case, in the order in which they are made."""
    p = case.problem
    return ["q", "k", "v"] + ["do"] * p.backward + ["bias"] * (p.bias is not None) + list(p.weights)


def helpers(case: Case, guard: bool) -> list[str]:
    """Functions that the inputs need: the generator of the numbers, and what lays tensors out in memory."""
    written: dict[str, list[str]] = {name: [] for name in ("constant", *CODED)}
    needed = ({"integers": ["random_bits"]} | written).get(case.inputs.distribution, ["normal"])
    if case.inputs.distribution == "needle":
        needed.append("random_bits")
    if "do" in names(case) and case.inputs.do.order == "expanded" and needed == ["random_bits"]:
        needed = ["random_bits"]
    found = [_generator(needed)] if needed else []
    if case.inputs.distribution in CODED:
        found.append(_UNPACK)
    if any(_strided(case, name) for name in names(case)):
        found.append(_LAY.format(names="bhsd" if case.problem.layout == "padded" else "shd"))
    return found + ([_GUARDED] if guard else [])


def lines(case: Case, guard: bool) -> list[str]:
    """Lines that make q, k, v, do and bias; they may read `keep` where `reads_mask` says so."""
    p, shape = case.problem, shapes(case.problem)
    made = [f"{name} = {_numbers(case, name, shape[name])}" for name in names(case)]
    made += _pointed(case) if case.inputs.distribution == "needle" else []
    made += _lifted(case) if case.inputs.distribution == "adversarial" else []
    made += _cancelling(case) if case.inputs.distribution == "cancelling" else []
    if p.layout == "padded" and p.ragged:
        made += _padding(case)
    made += _stored(case)
    if guard:
        joined = ", ".join(names(case))
        made.append(f"({joined}), buffers = zip(*(guarded(x) for x in ({joined})))")
    return made


def reads_mask(case: Case) -> bool:
    """True if the inputs depend on the mask."""
    return case.inputs.distribution == "adversarial"


def _generator(needed: list[str]) -> str:
    """The functions of fuzz/tensors/values.py themselves, so that the numbers cannot drift from the harness's."""
    return excerpt(inspect.getsource(values), needed)


def _numbers(case: Case, name: str, shape: tuple[int, ...]) -> str:
    text = _plain_numbers(case, name, shape)
    return f"{text} * {case.problem.dim**-0.5!r}" if name in case.problem.weights else text


def _plain_numbers(case: Case, name: str, shape: tuple[int, ...]) -> str:
    if getattr(case.inputs, name, Storage()).order == "expanded":
        return f"torch.ones({shape})"
    if case.inputs.distribution in CODED:
        return _written(case, name, shape)
    seed, stream = values.stream_of(case.inputs.seed, name)
    match case.inputs.distribution:
        case "integers":
            count = 1
            for size in shape:
                count *= size
            return f'(random_bits({seed}, "{stream}", {count}, DEVICE) % 5 - 2).view({shape}).float()'
        case "constant":
            return f"torch.full({shape}, {0.5 if name == 'q' else 1.0}, device=DEVICE)"
    gain = values.LARGE.get(name) if case.inputs.distribution == "large" else None
    times = f" * {gain}" if gain is not None else ""
    return f'normal({seed}, "{stream}", {shape}, DEVICE)' + times


def _written(case: Case, name: str, shape: tuple[int, ...]) -> str:
    """The numbers themselves: they follow from the mask, row by row. Raises ScriptError where they are too many."""
    flat = values.make_values(case, "cpu")[name].flatten()
    if not flat.numel():
        return f"torch.zeros({shape}, device=DEVICE)"
    if flat.numel() > WRITTEN:
        raise ScriptError(f"inputs: {name} has {flat.numel()} numbers that spell its keys, too many to be written down")
    text = base64.b64encode(zlib.compress(flat.numpy().tobytes(), 9)).decode()
    return f"written({shape},\n" + "\n".join(f'    "{part}"' for part in textwrap.wrap(text, 110)) + "\n)"


def _sequences(case: Case) -> tuple[str, str, str]:
    """The head of a loop over sequences that have queries and keys, and what q and k of sequence b are in it."""
    p = case.problem
    if p.layout == "padded":
        here = list(zip(range(p.batch), p.lengths_q, p.lengths_k, strict=True))
        return f"for b, n_q, n_k in {[x for x in here if x[1] and x[2]]}:", "q[b, :, :n_q]", "k[b, :, :n_k]"
    at_q = at_k = 0
    spans = []
    for b, (n_q, n_k) in enumerate(zip(p.lengths_q, p.lengths_k, strict=True)):
        if n_q and n_k:
            spans.append((b, at_q, n_q, at_k, n_k))
        at_q, at_k = at_q + n_q, at_k + n_k
    head = f"for b, at_q, n_q, at_k, n_k in {spans}:"
    return head, "q[at_q : at_q + n_q].transpose(0, 1)", "k[at_k : at_k + n_k].transpose(0, 1)"


def _pointed(case: Case) -> list[str]:
    p = case.problem
    head, q, k = _sequences(case)
    group = f" // {p.group}" if p.group > 1 else ""
    return [
        f"{head}  # each query is a multiple of one key",
        f'    pick = random_bits({case.inputs.seed} + b, "needle", {p.heads_q} * n_q, DEVICE) % n_k',
        f"    heads = torch.arange({p.heads_q}, device=DEVICE)[:, None]{group}",
        f"    {q}.copy_({k}[heads, pick.view({p.heads_q}, -1)] * {values.NEEDLE_GAIN})",
    ]


def _lifted(case: Case) -> list[str]:
    p = case.problem
    head, _, k = _sequences(case)
    return [
        f"q += {values.ADVERSARIAL_GAIN}",
        f"{head}  # the keys that the fewest rows see get the largest scores",
        f"    for h in range({p.heads_kv}):",
        f"        seen = keep[min(b, len(keep) - 1), min(h * {p.group}, keep.shape[1] - 1), :n_q, :n_k]"
        f"[:: max(1, n_q // {values._MASK_SAMPLE})]",
        "        hidden = (~seen).sum(0) * 16 // len(seen)",
        f"        {k}[h] += hidden.float()[:, None] / 16",
    ]


def _cancelling(case: Case) -> list[str]:
    p = case.problem
    head, q, k = _sequences(case)
    v, do = k.replace("k[", "v[", 1), q.replace("q[", "do[", 1)
    made = [
        f"q *= {EVEN}",
        f"{head}  # value vectors near one of their head, and the rows of dO along it",
        f"    common = {v}[:, :1].clone()",
        f"    {v}.mul_({SPREAD}).add_(common)",
    ]
    if p.backward and case.inputs.do.order != "expanded":
        made.append(f"    {do}.mul_({SPREAD}).add_(common.repeat_interleave({p.group}, 0))")
    gates = ["w_gate[:, 2] = -w_gate[:, 1]", f"w_gate[:, 0] *= {OTHER}"]
    return made + gates * ("w_gate" in p.weights)


def _padding(case: Case) -> list[str]:
    p = case.problem
    filled = [("q", "n_q"), ("k", "n_k"), ("v", "n_k")] + [("do", "n_q")] * (p.backward)
    filled = [(name, n) for name, n in filled if not _stores_fewer(getattr(case.inputs, name))]
    stores = [f"    {name}[b, :, {n}:] = {values.PADDING}" for name, n in filled]
    pairs = list(zip(p.lengths_q, p.lengths_k, strict=True))
    return [f"for b, (n_q, n_k) in enumerate({pairs}):  # padding that nothing may read", *stores]


def _strided(case: Case, name: str) -> bool:
    store = getattr(case.inputs, name, Storage())
    return store.order != "expanded" and replace(store, shared="") != Storage()


def _stores_fewer(store: Storage) -> bool:
    """True if several elements of the tensor are one in memory."""
    return store.order == "expanded" or bool(store.shared)


def _first(case: Case, name: str, shared: str) -> str:
    """Index of the part of a tensor that has memory of its own."""
    axes = "bhsd" if case.problem.layout == "padded" else "shd"
    return name + f"[{', '.join(':1' if axis in shared else ':' for axis in axes[:-1])}]"


def _stored(case: Case) -> list[str]:
    """Casts, and the strides where they are not plain."""
    p, made = case.problem, []
    wide = p.bias is not None and p.bias.dtype == "float32"
    cast = [name for name in names(case) if not (name == "bias" and wide)]
    if p.dtype != "float32":
        made.append(f"{', '.join(cast)} = (x.to(DTYPE) for x in ({', '.join(cast)}))")
    for name in names(case):
        storage = getattr(case.inputs, name, Storage())
        if storage.order == "expanded":
            made.append(
                f"{name} = torch.ones((), dtype=DTYPE, device=DEVICE).expand({name}.shape)  # as out.sum() makes it"
            )
            continue
        whole = name
        if storage.shared:
            whole = _first(case, name, storage.shared)
        if _strided(case, name):
            extra = "".join(
                f", {key}={value}" for key, value in (("pad", storage.pad), ("offset", storage.offset)) if value
            )
            whole = f'lay({whole}, "{storage.order}"{extra})'
        elif storage.shared:
            whole += ".contiguous()"
        if storage.shared:
            whole += f".expand({name}.shape)"
        if whole != name:
            made.append(f"{name} = {whole}")
    return made
