# SPDX-License-Identifier: Apache-2.0
"""FSDP2 (torch.distributed.fsdp.fully_shard) with fused communication:
`fsccl_torch.fsdp2.enable(model)` after fully_shard.

Stock FSDP2 packs a layer's shards, gathers, copies the result out into the parameters, and in
backward concatenates the gradients, reduces, divides and casts. Here each rank writes its shards,
cast, to their final place in a slot that the ranks of the host share; the parameters are views of
it. Each rank publishes of its gradients only what others need, and one pass sums all ranks' parts,
scales, casts and accumulates. A gather is submitted where FSDP2 starts it and waited for where
FSDP2 uses it, so prefetching hides the wait. Gradients are reduced in buckets as autograd produces
them; each reduction is waited for at the next. On GPUs a group's gather goes to FSDP2's all-gather
stream and its reduction, one for the group, to the reduce-scatter stream; events order them as they
order FSDP2's own, and the host waits for nothing.

FSDP2 itself is unchanged: its state machine calls three functions of its own, found by name in its
modules, and these go to a Group when the parameters belong to one. Whatever a Group cannot carry
takes the stock path over the process group, announced once.
"""

import os
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as _collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as _param_group

from . import codecs, fsdp2_overhead
from . import fsdp2_versions as versions
from .fsdp2_gather import Settings
from .fsdp2_group import OVERRIDDEN, Group, announce, group_of
from .storage import can_be_exchanged


def enable(
    model: torch.nn.Module,
    *,
    keep_bytes: int | None = None,
    keep_frozen_bytes: int | None = None,
    gather_codec: str | None = None,
    reduce_codec: str | None = None,
) -> torch.nn.Module:
    """Switches the fused path on for every FSDP2 parameter group in `model`; returns the model.
    Call it after fully_shard, on all ranks. Its numbers are those of FSDP2 without it: bit for bit
    in shard groups of 2 ranks, up to the order of summation beyond.

    keep_bytes: up to so many bytes of gathered parameters per host stay in memory between forward
    and backward, where the backward gather then moves nothing; None: FSCCL_TORCH_KEEP_BYTES, 0 by
    default (reshard_after_forward=True then frees as ever).

    keep_frozen_bytes: up to so many bytes of parameters that need no gradient at the first gather
    stay gathered until an optimizer has written to other parameters on the process group: so
    micro-batches of a step gather them once. A write to them that changes their version is seen at
    once, one through `.data` not before that. None: FSCCL_TORCH_KEEP_FROZEN_BYTES, by default all
    in host memory, where a host has one copy, and none on a GPU, where each rank has one. The pool
    gives them up before it runs out of memory. 0: they are gathered as all others.

    gather_codec: "delta" sends 16-bit parameters between hosts as differences from the last gather,
    without loss (docs/codecs.md); each host then keeps a copy of them. It declines where the link is
    too fast for it, which "delta-always" does not. "int8", "fp8" and "mxfp8"
    send 8 bits an element, with a loss whose bound docs/codecs.md states. Groups whose parameters
    are not gathered in 16 bits ("delta") or in 16 or 32 (the others), or lie on a GPU, go without.
    None: FSCCL_TORCH_GATHER_CODEC, none by default. The same on all ranks.

    reduce_codec: "bf16", "int8" and "int4" send the gradients that ranks have for other hosts in
    16, 8 or 4 bits an element, with a loss (docs/codecs.md). With "-feedback" behind the name a
    rank adds what a step lost to the next step's gradients, which takes 4 bytes for each element
    that the rank sends; take a loss scale that changes off before. Groups whose gradients lie on a
    GPU, or are not fp16, bf16 or fp32, go without. HSDP's sum over replicas goes without. None:
    FSCCL_TORCH_REDUCE_CODEC, none by default. The same on all ranks.

    fsdp2_switches.py lists what stays with stock FSDP2, which is logged once for each reason;
    report() tells it for each group. All groups stay with it where this torch has not the seams
    that are known here."""
    if keep_bytes is None:
        keep_bytes = int(os.environ.get('FSCCL_TORCH_KEEP_BYTES', '0'))
    if keep_frozen_bytes is None and 'FSCCL_TORCH_KEEP_FROZEN_BYTES' in os.environ:
        keep_frozen_bytes = int(os.environ['FSCCL_TORCH_KEEP_FROZEN_BYTES'])
    gather = codecs.known_gather(gather_codec or os.environ.get('FSCCL_TORCH_GATHER_CODEC'))
    reduction = codecs.known_reduction(reduce_codec or os.environ.get('FSCCL_TORCH_REDUCE_CODEC'))
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
        groups = [Group.attach(group, state, settings) for group in versions.groups_of(state)]
        _flush_after_backward(state, groups)
        fsdp2_overhead.wrap_hooks_once(state)
    return model


def codec(model):
    """Counts what the codecs of `model` have done so far on this rank, added up
    (fsccl_codec_report_t): a dict of gathers, coded, plain, declined, mended, plain_bytes,
    sent_bytes; of block codecs blocks, exact_blocks, audited_blocks, beyond_bound and max_error; of
    codecs of reductions reductions, reduce_plain_bytes and reduce_sent_bytes. Does not
    communicate."""
    groups = (
        group_of(group.fsdp_params)
        for state in _states(model)
        for group in versions.groups_of(state)
    )
    return codecs.add_up(
        [report for group in groups if group is not None for report in group.codec_reports()]
    )


class GroupReport(NamedTuple):
    """A parameter group. `gathers` and `reduces` are None where its gather, or its reduction, is
    fused, else why it is not."""

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
    """Reports a model's parameter groups, a GroupReport each; as text a line each."""

    def __str__(self):
        return '\n'.join(str(group) for group in self)


def report(model: torch.nn.Module) -> Report:
    """Which parameter groups of `model` are fused, and why others are not, as the last gather and
    the last reduction of each found it on this rank. Does not communicate."""
    found = Report()
    for state in _states(model):
        for group in versions.groups_of(state):
            ours = group_of(group.fsdp_params)
            if ours is not None:
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
    """The states of FSDP2 in a model, each once; several modules may share one."""
    return list(
        dict.fromkeys(
            module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)
        )
    )


# --------------------------------------------------------------------------------------------------
# seams ----

# Names what is replaced, and the parameters of it that are used here; the first two come first.
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
    """The name of a seam that this torch has not, or None."""
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
    """The arguments of a seam behind the first two, by their names."""
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
    unsharded_grads.clear()  # its owner: what is in flight holds them
    return versions.reduced(ours.fsdp, event, stream)


def _flush_after_backward(state, groups):
    """FSDP2 finalizes its groups after the last backward; one that is not the last must leave its
    gradients, too."""
    stock = state._root_post_backward_final_callback
    if getattr(stock, '_fsccl', False):
        return

    def callback():
        stock()
        for group in groups:
            group.flush()

    callback._fsccl = True
    state._root_post_backward_final_callback = callback
