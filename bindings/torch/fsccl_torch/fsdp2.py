# SPDX-License-Identifier: Apache-2.0
"""This module gives FSDP2 (torch.distributed.fsdp.fully_shard) fused communication: call
`fsccl_torch.fsdp2.enable(model)` after fully_shard.

Stock FSDP2 packs a layer's shards, gathers them, and copies the result out into the parameters. In
backward it concatenates the gradients, reduces, divides and casts them. Here each rank casts its
shards and writes them to their final place in a slot that the ranks of the host share, and the
parameters are views of the slot. Each rank publishes only those parts of its gradients that other
ranks need, and one pass sums the parts of all ranks, scales, casts and accumulates.

A gather is submitted where FSDP2 starts it and waited for where FSDP2 uses it, so prefetching hides
the wait. Gradients are reduced in buckets as autograd produces them, and each reduction is waited
for when the next one begins. On GPUs a group's gather runs on FSDP2's all-gather stream, and one
reduction for the whole group on its reduce-scatter stream. Events order these as they order FSDP2's
own operations, and the host waits for nothing.

FSDP2 itself is unchanged. Its state machine calls three functions of its own, which it finds by
name in its modules. enable() replaces these names, and the replacements hand the call to a Group
when the parameters belong to one. A call that the Group cannot carry takes the stock path over the
process group, and the log says so once.
"""

import os
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as _collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as _param_group

from . import codecs, fsdp2_overhead
from . import fsdp2_versions as versions
from .announce import announce
from .fsdp2_gather import Settings
from .fsdp2_group import OVERRIDDEN, Group, group_of
from .storage import can_be_exchanged


def enable(
    model: torch.nn.Module,
    *,
    keep_bytes: int | None = None,
    keep_frozen_bytes: int | None = None,
    gather_codec: str | None = None,
    reduce_codec: str | None = None,
) -> torch.nn.Module:
    """Switches the fused path on for every FSDP2 parameter group in `model`, and returns the model.
    Call it after fully_shard, on all ranks. Results are those of FSDP2 without it: bit for bit in
    shard groups of 2 ranks, and up to the order of summation in larger ones.

    keep_bytes: up to so many bytes of gathered parameters per host stay in memory between forward
    and backward, so that the gather of backward moves nothing for them. None means
    FSCCL_TORCH_KEEP_BYTES, whose default is 0: then reshard_after_forward=True frees all of them.

    keep_frozen_bytes: up to so many bytes of parameters that need no gradient at the first gather
    stay gathered until an optimizer has written to other parameters on the process group. So the
    micro-batches of a step gather them once. A write to them that changes their version is noticed
    at the next gather; a write through `.data` is not noticed before the optimizer's step. All
    ranks write at the same place of the program, even if some change nothing, because a gather
    needs all of them. None means FSCCL_TORCH_KEEP_FROZEN_BYTES. Its default keeps all of them in
    host memory, where a host has one copy, and none on a GPU, where each rank has one. The pool
    gives them up before it runs out of memory. With 0 they are gathered like all others.

    gather_codec: "delta" sends 16-bit parameters between hosts as differences from the last gather,
    without loss (docs/codecs.md); each host then keeps a copy of them. It sends plain parameters
    where the link is so fast that coding would cost time; "delta-always" codes even there, as do
    "delta-nibbles", which only takes the form that is faster to code, and "delta-fewest-bytes",
    which only takes the form with the fewest bytes. "int8",
    "fp8" and "mxfp8" send 8 bits an element, with a loss whose bound docs/codecs.md states. With
    "-everywhere" behind the name the parameters are coded on one host, too, so that the loss does
    not depend on which ranks share a host. The codec is not used for groups whose parameters are
    gathered in other types than 16 bits ("delta") or 16 or 32 bits (the others), and "delta" not
    for groups on a GPU; this is logged. Give MixedPrecisionPolicy(param_dtype=torch.bfloat16) to
    gather in 16 bits. None means FSCCL_TORCH_GATHER_CODEC, which is empty by default: no codec.
    All ranks give the same value.

    reduce_codec: "bf16", "int8" and "int4" send the gradients that ranks have for other hosts in
    16, 8 or 4 bits an element, with a loss (docs/codecs.md). With "-feedback" behind the name a
    rank adds what one step lost to the next step's gradients, which takes 4 bytes for each element
    that the rank sends. With "-everywhere" at the end each rank codes its own gradients for each
    other rank, also inside a host ("int8-feedback-everywhere"); groups on GPUs do so whenever they code.
    The loss is in units of the
    gradients, so do not use it with a loss scale that changes, unless you divide by the scale
    before gradients are reduced. The codec is not used for gradients other than fp16, bf16 or fp32,
    nor for HSDP's sum over replicas. None means FSCCL_TORCH_REDUCE_CODEC, which is empty by
    default: no codec. All ranks give the same value.

    Some groups stay with stock FSDP2, for reasons that fsdp2_switches.py lists. Each reason is
    logged once, and report() gives it for each group. All groups stay with it if this version of
    torch has changed the functions that are replaced here."""
    if keep_bytes is None:
        keep_bytes = int(os.environ.get('FSCCL_TORCH_KEEP_BYTES', '0'))
    if keep_frozen_bytes is None and 'FSCCL_TORCH_KEEP_FROZEN_BYTES' in os.environ:
        keep_frozen_bytes = int(os.environ['FSCCL_TORCH_KEEP_FROZEN_BYTES'])
    gather = codecs.known_gather(gather_codec)
    reduction = codecs.known_reduction(reduce_codec)
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ValueError(
            'fsccl_torch.fsdp2.enable(model): no module of it is sharded: call fully_shard first'
        )
    missing = _missing_seams()
    if missing:
        announce(
            f'fsdp2.enable: torch {torch.__version__} has changed {missing}: FSDP2 runs on the '
            f'plain backend'
        )
        return model
    _install()
    settings = Settings(keep_bytes, keep_frozen_bytes, gather, reduction)
    for state in _states(model):
        for group in versions.groups_of(state):
            Group.attach(group, state, settings)
        _flush_after_backward(state)
        fsdp2_overhead.wrap_hooks_once(state)
    return model


def codec(model):
    """Adds up what the codecs of `model` have done so far on this rank (fsccl_codec_report_t). The
    result is a dict of gathers, coded, plain, declined, mended, plain_bytes and sent_bytes; for
    "delta" also plain_us and coded_us, the predicted times of one gather of all groups without and
    with the codec, and declines, the number of groups whose codec is off at present, because it
    costs more time than it saves; for block codecs also blocks, exact_blocks, audited_blocks,
    beyond_bound, max_error and bound; for codecs of reductions also reductions,
    reduce_plain_bytes and reduce_sent_bytes. Does not communicate."""
    groups = (
        group_of(group.fsdp_params)
        for state in _states(model)
        for group in versions.groups_of(state)
    )
    return codecs.add_up(
        [report for group in groups if group is not None for report in group.codec_reports()]
    )


class GroupReport(NamedTuple):
    """Reports on one parameter group. `gathers` is None if its gather is fused, and otherwise says
    why it is not; `reduces` does the same for its reduction."""

    name: str
    gathers: str | None
    reduces: str | None

    def __str__(self) -> str:
        if self.gathers is None and self.reduces is None:
            return f"'{self.name}': fused"
        parts = (
            f'{what}: {why or "fused"}'
            for what, why in (('gather', self.gathers), ('reduction', self.reduces))
        )
        return f"'{self.name}': " + (
            '; '.join(parts) if self.gathers != self.reduces else str(self.gathers)
        )


class Report(list):
    """A list with a GroupReport for each parameter group of a model. Its text has a line for each."""

    def __str__(self):
        return '\n'.join(str(group) for group in self)


def report(model: torch.nn.Module) -> Report:
    """Tells which parameter groups of `model` are fused, and why others are not, as this rank found
    at the last gather and the last reduction of each. Does not communicate."""
    found = Report()
    for state in _states(model):
        for group in versions.groups_of(state):
            ours = group_of(group.fsdp_params)
            if ours is not None and group._all_gather_process_group.size() == 1:
                why = 'its shard group has one rank, so nothing is gathered or reduced'
                found.append(GroupReport(ours.name, why, why))
            elif ours is not None:
                found.append(
                    GroupReport(ours.name, ours.why_not['gathers'], ours.why_not['reduces'])
                )
            else:
                missing = _missing_seams()
                why = (
                    f'torch {torch.__version__} has changed {missing}'
                    if missing
                    else 'fsdp2.enable() was not called on it'
                )
                found.append(GroupReport(group._module_fqn or 'root', why, why))
    return found


def _states(model: torch.nn.Module) -> list[Any]:
    """Returns the FSDP2 states in a model, each once, though several modules may share one."""
    return list(
        dict.fromkeys(
            module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)
        )
    )


# --------------------------------------------------------------------------------------------------
# seams ----

# The functions of FSDP2 that are replaced, and the names of those of their parameters that are used
# here. The first two parameters must come first.
_SEAMS = {
    'foreach_all_gather': (
        'fsdp_params',
        'group',
        'all_gather_copy_in_stream',
        'all_gather_stream',
    ),
    'foreach_all_gather_copy_out': ('all_gather_result', 'fsdp_params'),
    'foreach_reduce': ('fsdp_params', 'unsharded_grads', 'reduce_scatter_stream', 'reduce_dtype'),
}
_FIELDS = (
    'all_gather_output',
    'all_gather_event',
    'all_gather_work',
    'param_all_gather_input_dtypes',
    'param_all_gather_input_numels',
    'all_gather_input_split_sizes',
)
_stock: dict[str, Any] = {}


def _missing_seams() -> str | None:
    """Returns the name of something that this torch does not have as it is used here, or None."""
    for name, parameters in _SEAMS.items():
        function = _stock.get(name, getattr(_param_group, name, None))
        names = versions.argument_names(function) if function else ()
        if names[:2] != parameters[:2] or not set(parameters) <= set(names):
            return f'{_param_group.__name__}.{name}'
    for name in OVERRIDDEN[:-1]:  # the last one is new in 2.13
        if not callable(getattr(_param_group.FSDPParamGroup, name, None)):
            return f'FSDPParamGroup.{name}'
    if getattr(_collectives.AllGatherResult, '_fields', None) != _FIELDS:
        return 'AllGatherResult'
    if not can_be_exchanged():
        return 'the layout of its storages'
    return None


def _install():
    if _stock:
        return
    for name, ours in zip(_SEAMS, (_all_gather, _copy_out, _reduce)):
        _stock[name] = getattr(_param_group, name)
        setattr(_param_group, name, ours)
    fsdp2_overhead.replace_names()


def _all_gather(fsdp_params, group, *arguments, **keywords):
    ours = group_of(fsdp_params)
    if ours is None or not ours.ready():
        return _stock['foreach_all_gather'](fsdp_params, group, *arguments, **keywords)
    if not ours.on_stream:
        ours.issue()
        return versions.gathered(ours.fsdp, None)
    given = _given('foreach_all_gather', arguments, keywords)
    event = ours.issue_on(given['all_gather_stream'], given['all_gather_copy_in_stream'])
    return versions.gathered(ours.fsdp, event)


def _given(name, arguments, keywords):
    """Returns the arguments behind the first two of a replaced function, by their names."""
    return dict(zip(versions.argument_names(_stock[name])[2:], arguments), **keywords)


def _copy_out(all_gather_result, fsdp_params, *arguments, **keywords):
    ours = group_of(fsdp_params)
    if ours is None or not ours.gathering:
        return _stock['foreach_all_gather_copy_out'](
            all_gather_result, fsdp_params, *arguments, **keywords
        )
    ours.follow(all_gather_result.all_gather_event)
    return ours.open()


def _reduce(fsdp_params, unsharded_grads, *arguments, **keywords):
    ours = group_of(fsdp_params)
    given = _given('foreach_reduce', arguments, keywords)
    if ours is None or not ours.reduces(
        unsharded_grads, given['reduce_dtype'] or unsharded_grads[0].dtype
    ):
        if ours is not None:
            ours.flush()
        return _stock['foreach_reduce'](fsdp_params, unsharded_grads, *arguments, **keywords)
    stream, factor = given['reduce_scatter_stream'], versions.divide_factor(ours.fsdp)
    if ours.on_stream:
        event = ours.reduce_on(stream, fsdp_params, unsharded_grads, factor)
    else:
        ours.reduce(fsdp_params, unsharded_grads, factor)
        event = stream.record_event()
    unsharded_grads.clear()  # FSDP2 owns this list; the reduction in flight keeps the tensors
    return versions.reduced(ours.fsdp, event, stream)


def _flush_after_backward(state):
    """Makes sure that each backward leaves its gradients in the parameters. FSDP2 finalizes its
    groups only after the last backward of several, and calls this for the state alone whose
    backward begins first."""
    stock = state._root_post_backward_final_callback
    if getattr(stock, '_fsccl', False):
        return

    def callback():
        stock()
        for one in state._state_ctx.all_states:
            for group in versions.groups_of(one):
                ours = group_of(group.fsdp_params)
                if ours is not None:
                    ours.flush()

    callback._fsccl = True
    state._root_post_backward_final_callback = callback
