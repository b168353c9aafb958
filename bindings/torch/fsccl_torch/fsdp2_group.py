# SPDX-License-Identifier: Apache-2.0
"""Group carries out on a unit what FSDP2's state machine asks of an FSDPParamGroup (fsdp2.py):
submit a gather, open it, close it, reduce.

All these operations are collective, so every decision here must be the same on all ranks. It may
depend on the program and on what FSDP2 does, but not on addresses, on timing or on what one rank
does alone.
"""

import collections
import functools
import weakref

import torch
from torch._compile import _disable_dynamo
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from . import fsdp2_overhead, streams
from . import fsdp2_switches as switches
from . import fsdp2_versions as versions
from .announce import announce
from .dtypes import FLOATS
from .fsdp2_domain import Domain
from .fsdp2_gather import gathers_of
from .fsdp2_reduction import Reduction

# Gradients of about so many bytes are reduced together. Smaller buckets would wait for peers more
# often, larger ones would keep more memory.
_BUCKET_BYTES = 16 << 20
# These methods of an FSDPParamGroup are replaced by the methods of the same names here, which get
# the stock method as their first argument.
OVERRIDDEN = (
    '_to_sharded',
    '_to_unsharded',
    'post_backward',
    'finalize_backward',
    '_reset_iter_state',
)
_NOT_YET = 'it was not used yet'


def group_of(fsdp_params):
    """Returns the Group of some FSDPParams of one group, or None."""
    return getattr(fsdp_params[0], '_fsccl_group', None) if fsdp_params else None


class Group:
    """Carries out the communication of one FSDPParamGroup."""

    def __init__(self, fsdp, state, settings):
        self.fsdp, self._state, self._settings = fsdp, weakref.ref(state), settings
        self.on_stream = streams.on_gpu(fsdp.device)
        self.domain, self._gathers, self._reductions, self._never = None, [], {}, None
        # report() tells these reasons. None: it is fused.
        self.why_not = {'gathers': _NOT_YET, 'reduces': _NOT_YET}
        self.gathering = False  # a gather was submitted, and its slot was not given back yet
        # The state of this backward: the first bucket that is not reduced yet, and for each bucket
        # the parameters whose gradients are there. _early: hooks must still be registered.
        self._early, self._next, self._there = False, 0, collections.defaultdict(set)
        # True if some backward was not synchronised since the last one that was finalized
        self._accumulated = False

    @classmethod
    def attach(cls, fsdp, state, settings):
        """Returns the Group of an FSDPParamGroup, which is made once and lives as long as it."""
        known = group_of(fsdp.fsdp_params)
        if known is not None:
            known._take(settings)
            return known
        ours = cls(fsdp, state, settings)
        for param in fsdp.fsdp_params:
            param._fsccl_group = ours
        fsdp.pre_backward = fsdp2_overhead.wrapped_once(fsdp, 'pre_backward')
        for name in OVERRIDDEN:
            if hasattr(fsdp, name):
                ours._override(name)
        return ours

    def _take(self, settings):
        """Takes the options of another enable(), which count from the first gather on."""
        if settings != self._settings and self._gathers:
            raise ValueError(
                f"fsccl_torch.fsdp2.enable: group '{self.name}' has run with {self._settings}: other "
                'options must be given before the first forward'
            )
        self._settings = settings

    @property
    def name(self):
        return self.fsdp._module_fqn or 'root'

    def codec_reports(self):
        """Returns what the codecs of the group's gathers and reductions have done so far."""
        return [gather.unit.codec_report() for gather in self._gathers] + [
            reduction.codec_report() for reduction in self._reductions.values()
        ]

    def _override(self, name):
        stock, ours = fsdp2_overhead.wrapped_once(self.fsdp, name), getattr(self, name)
        setattr(self.fsdp, name, lambda *arguments, **keywords: ours(stock, *arguments, **keywords))

    # ----------------------------------------------------------------------------------------------
    # set-up ----

    def ready(self):
        """Returns whether the next gather is fused. The first call makes the units, because the
        dtypes are final only then."""
        if self.fsdp.is_sharded_post_forward:
            return False
        if not self._gathers and self._never is None:
            self._never = switches.never_gathers(self.fsdp)
        if not self._is_ours('gathers', self._never or switches.gathers_otherwise(self.fsdp)):
            for gather in self._gathers:
                gather.forget()
            return False
        if not self._gathers:
            self._make_units()
        return True

    def _is_ours(self, what, why):
        """Returns whether `what` is fused, which it is if `why` is None. Otherwise stock FSDP2 does
        `what`, and the log says each reason once."""
        self.why_not[what] = why
        if why is not None:
            announce(
                f"fsdp2: group '{self.name}' stays with stock FSDP2, which {what} for it: {why}. "
                f'The same holds for all such '
                'groups; fsdp2.report(model) lists them',
                (what, why),
            )
        return why is None

    def _make_units(self):
        fsdp = self.fsdp
        self._comm = fsdp._all_gather_process_group._get_backend(fsdp.device)._comm
        # Sums are rounded to the dtype in which FSDP2 reduces. As in FSDP2, a cast to the dtype of
        # the shards comes after that.
        self._sum_dtype = switches.dtype_of_sums(fsdp)
        self.domain = Domain.of(self._comm)
        self.domain.take_back(fsdp.device)
        self._gathers = gathers_of(fsdp, self._comm, self.domain, self._settings, self.on_stream)
        trainable = [p for p in reversed(fsdp.fsdp_params) if p.sharded_param.requires_grad]
        wire = fsdp.fsdp_params[0].param_dtype or fsdp.fsdp_params[0].orig_dtype
        self._buckets = (
            [trainable] * bool(trainable) if self.on_stream else _buckets(trainable, wire)
        )
        # Buckets are reduced during the group's backward except in three cases. The gradients of
        # parameters that are DTensors themselves may need collectives before they are whole, and
        # FSDP2 runs these at the end. On a GPU one reduction of the whole group takes one launch,
        # and its stream runs beside backward anyway. A single bucket is complete only when the
        # group's backward is over.
        self._early = (
            len(self._buckets) > 1
            and self._sum_dtype in FLOATS
            and not any(param.is_dtensor for param in fsdp.fsdp_params)
            and not self.on_stream
        )
        self.domain.groups.add(self)

    # ----------------------------------------------------------------------------------------------
    # gather ----

    def issue(self):
        """Submits the gather."""
        state = self.fsdp._training_state
        if state == TrainingState.FORWARD:
            self.domain.mark_step(self)
        for gather in self._gathers:
            gather.issue(state)
        self.gathering = True

    def issue_on(self, stream, copy_in_stream):
        """Puts the gather on a stream, and returns the event behind it. FSDP2 lets `copy_in_stream`
        wait for what the shards need. If both are the same stream, the program unshards by itself,
        and the gather goes to the domain's own stream so that it runs beside the program's."""
        if stream == copy_in_stream:
            stream = self.domain.gathering(self.fsdp.device)
        stream.wait_stream(copy_in_stream)
        for gather in self._gathers:
            gather.unit.use(stream)
        self.issue()
        return streams.cuda.record(stream)

    def follow(self, event):
        """Makes the current stream wait for the gather. The slot will be given back on this
        stream."""
        if self.on_stream and event is not None:
            streams.cuda.current_stream(self.fsdp.device).wait_event(event)

    def open(self):
        """Waits for the gather and puts the slot behind the parameters."""
        for gather in self._gathers:
            gather.open()

    def close(self):
        """Takes the slot away from the parameters and gives it back."""
        if not self.gathering:
            return
        for gather in self._gathers:
            gather.close()
        self.gathering = False
        stream = streams.cuda.current_stream(self.fsdp.device) if self.on_stream else None
        for gather in self._gathers:
            gather.reshard(stream)

    def _to_sharded(self, stock):
        # A group with a result that FSDP2 has not opened yet is prefetched, and stays.
        if self.gathering and self.fsdp._all_gather_result is None:
            self.close()
        stock()

    def finalize_backward(self, stock):
        stock()
        if self.fsdp.reduce_grads:
            self._accumulated = False
        self.flush()
        if self.on_stream and self.domain is not None:
            self.domain.let_go(self.fsdp.device)
        if self.gathering and self.fsdp.is_sharded:  # it was prefetched and never used
            self.close()

    def _reset_iter_state(self, stock):
        self.flush(keep=False)
        self._next = 0
        self._there.clear()
        stock()

    # ----------------------------------------------------------------------------------------------
    # reduce ----

    def flush(self, keep=True):
        if self.domain is not None:
            self.domain.flush(keep)

    def reduces(self, grads, dtype):
        """Returns whether gradients that stock FSDP2 would reduce in `dtype` are reduced here."""
        if not self._gathers:
            self.why_not['reduces'] = self.why_not['gathers']
            return False
        if self._sum_dtype is None:  # all parameters were frozen when the units were made
            self._sum_dtype = switches.dtype_of_sums(self.fsdp)
        why = switches.reduces_otherwise(self.fsdp)
        if why is None and (
            self._sum_dtype != dtype or any(grad.dtype not in FLOATS for grad in grads)
        ):
            why = f'its gradients, of {", ".join(sorted({str(grad.dtype) for grad in grads}))}, are summed in {dtype}'
        return self._is_ours('reduces', why)

    def _is_finalized_by_hand(self):
        """Returns whether the program finalizes backward itself. FSDP2 then reduces some groups
        only there, with what several backwards have left."""
        state = self._state()
        return state is not None and getattr(
            state._state_ctx, 'manual_backward_finalization', False
        )

    def reduce_on(self, stream, fsdp_params, grads, factor):
        """Puts reductions on a stream, behind what the current one was given, and returns the event
        behind them. The parameters get the sums at once. A reader of them waits for the event, as
        for the event of FSDP2's own reduction."""
        stream.wait_stream(streams.cuda.current_stream(self.fsdp.device))
        with streams.cuda.on(stream):
            self.reduce(fsdp_params, grads, factor)
            self.domain.flush()
        event = streams.cuda.record(stream)
        self.domain.hold(self.fsdp.device, grads, event)
        return event

    def reduce(self, fsdp_params, grads, factor):
        """Submits a reduction for each bucket. Each is finished when the domain's next one begins,
        at the latest after backward."""
        given = dict(zip(fsdp_params, grads))
        bucketed = {param for bucket in self._buckets for param in bucket}
        # Parameters that were frozen when the buckets were made get buckets of their own.
        self._buckets += [[param] for param in fsdp_params if param not in bucketed]
        for i, bucket in enumerate(self._buckets):
            if any(param in given for param in bucket):
                self._reduce_bucket(i, [given.get(param) for param in bucket], factor)

    def _reduce_bucket(self, i, grads, factor):
        self.domain.flush()
        # A gradient has the dtype that autograd gave it, or that of the sums after accumulation
        # without synchronisation, or as zeros for a parameter that was not used. It is sent in the
        # dtype that autograd gives, unless FSDP2 would round it before it sums, or some rank may
        # have gradients of the other kinds, which depends on the program alone.
        dtype = functools.reduce(
            torch.promote_types, {grad.dtype for grad in grads if grad is not None}
        )
        mixed = self._accumulated or getattr(self.fsdp, 'reduce_scatter_unused_params', False)
        if mixed or torch.promote_types(dtype, self._sum_dtype) != self._sum_dtype:
            dtype = self._sum_dtype
        if (i, dtype) not in self._reductions:
            replicas = self.fsdp._all_reduce_process_group if self.fsdp._is_hsdp else None
            self._reductions[i, dtype] = Reduction(
                self._comm,
                self.name,
                self._buckets[i],
                dtype,
                self._sum_dtype,
                replicas,
                self._settings.reduce_codec,
            )
        self.domain.reducing = self._reductions[i, dtype].submit(grads, factor)
        if self.domain.reducing.synchronous:
            self.domain.flush()

    def _to_unsharded(self, stock):
        stock()
        if self._early:
            self._early = False  # the hooks below stay registered
            # The reference is weak because the garbage collector does not see the hooks of a leaf.
            ours = weakref.ref(self)
            for i, bucket in enumerate(self._buckets):
                for param in bucket:
                    hook = functools.partial(_gradient_came, ours, i)
                    param.unsharded_param.register_post_accumulate_grad_hook(hook)

    def reduce_early(self, bucket, leaf):
        """Reduces a bucket as soon as its gradients are there, so that whole gradients do not wait
        in memory until the group's backward is over. Ranks may get gradients in different orders,
        so a bucket is reduced only after all buckets before it. FSDP2 hands the remaining ones to
        reduce()."""
        fsdp, buckets = self.fsdp, self._buckets
        self._there[bucket].add(leaf)
        if (
            not self._is_complete(self._next)
            or not fsdp.reduce_grads
            or getattr(fsdp, 'reduce_scatter_unused_params', False)
            or self._is_finalized_by_hand()
            or not self._is_ours('reduces', switches.reduces_otherwise(fsdp))
        ):
            return
        while self._is_complete(self._next):
            with torch.no_grad():
                grads = [versions.take_grad(param) for param in buckets[self._next]]
                self._reduce_bucket(self._next, grads, versions.divide_factor(fsdp))
            self._next += 1

    def _is_complete(self, i):
        return i < len(self._buckets) and len(self._there[i]) == len(self._buckets[i])

    def post_backward(self, stock, *arguments):
        stock(*arguments)
        if not self.fsdp.reduce_grads:
            self._accumulated = True
        self._next = 0
        self._there.clear()


@_disable_dynamo
def _gradient_came(group, bucket, leaf):
    """Is the hook of a parameter's leaf. `group` is a weak reference."""
    group = group()
    if group is not None:
        group.reduce_early(bucket, id(leaf))


def _buckets(fsdp_params, dtype):
    """Deals parameters out to buckets, in the order in which they are given. Backward is likely to
    reach them in this order. Each bucket but the last has at least _BUCKET_BYTES."""
    buckets, room = [], 0
    for param in fsdp_params:
        if room <= 0:
            buckets.append([])
            room = _BUCKET_BYTES
        buckets[-1].append(param)
        room -= param._orig_size.numel() * dtype.itemsize
    return buckets
