# SPDX-License-Identifier: Apache-2.0
"""Describes a module for `fsccl-info forecast` and fsccl_forecast(): what a token costs in each
unit.

The module is on the meta device, so nothing is allocated or computed. Operations are counted by
torch's own counter, activations by the tensors that autograd saves.
"""

import json
import os
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode


def _attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    *,
    repeats,
):
    """Is scaled_dot_product_attention() by the kernel that a GPU would take: flash attention, or
    memory-efficient attention if there is a mask. With `repeats` keys and values are repeated for
    each group of heads."""
    flash = attn_mask is None and query.shape[-1] == value.shape[-1]
    if enable_gqa and (repeats or not flash):
        groups = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
    if flash:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


class _FusedNorm(torch.autograd.Function):
    """Is rms_norm() by the kernel that a GPU takes, as far as it saves: its input, its weight, and a
    value in fp32 for each norm."""

    @staticmethod
    def forward(ctx, value, weight):
        ctx.save_for_backward(value, weight, value.new_empty(value.shape[:-1], dtype=torch.float32))
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError('only the forward pass is counted')


def _norm(input, normalized_shape, weight=None, eps=None):
    return _FusedNorm.apply(input, weight)


class _FusedKernels(TorchFunctionMode):
    """Takes fused kernels for attention and for RMSNorm. On the meta device torch itself would take
    its references, which save a score for each pair of tokens, and copies in fp32."""

    def __init__(self, repeats):
        super().__init__()
        self._repeats = repeats

    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            query = args[0] if args else kwargs['query']
            if query.dim() == 4:
                return _attention(*args, **kwargs, repeats=self._repeats)
        if function is F.rms_norm:
            return _norm(*args, **kwargs)
        return function(*args, **kwargs)


def _default_units(module):
    """Returns the elements of module lists that are not inside another unit, as FSDP is applied to
    layers. A module that comes several times has one name, and is one unit."""
    known = dict(module.named_modules())
    names = []
    for name, child in known.items():
        inside = any(name.startswith(unit + '.') for unit in names)
        if isinstance(child, nn.ModuleList) and not inside:
            names += [each for i in range(len(child)) if (each := f'{name}.{i}') in known]
    return names


def _tokens(batch, sequence):
    return (torch.zeros((batch, sequence), dtype=torch.int64, device='meta'),)


def _storage(tensor):
    return tensor.untyped_storage()._cdata


def _tensors(value):
    found = []
    torch.utils._pytree.tree_map_only(torch.Tensor, found.append, value)
    return found


def _nodes(last):
    """Returns the nodes of autograd's graph that lead to the last one."""
    found, rest = {last} - {None}, [last]
    while rest:
        for node, _ in getattr(rest.pop(), 'next_functions', ()):
            if node is not None and node not in found:
                found.add(node)
                rest.append(node)
    return found


def _softmax_gradients(node):
    """Returns the bytes of the gradients of the result and of the input of log_softmax(), which are
    there at once; 0 for other nodes."""
    if node.name() != 'LogSoftmaxBackward0':
        return 0
    result = node._saved_result
    return 2 * result.numel() * result.element_size()


class _Activations:
    """Counts the bytes that a forward pass saves, and those that enter each unit. Each storage
    counts once."""

    def __init__(self, module, units):
        self.module, self.units = module, units
        self.saved = {name: 0 for name in ['', *units]}
        self.inputs = dict(self.saved)
        self._inside, self._seen, self._came = [''], set(), set()
        self._parameters = {_storage(value) for value in [*module.parameters(), *module.buffers()]}
        self._kept = []  # lives until all are counted, so that no storage reuses another's address

    def _pack(self, tensor):
        self._add(tensor, self.saved, self._seen, self._inside[-1])
        return tensor

    def _add(self, tensor, sums, seen, unit):
        storage = _storage(tensor)
        if storage in seen or storage in self._parameters:
            return
        seen.add(storage)
        self._kept.append(tensor)
        sums[unit] += tensor.untyped_storage().nbytes()

    def _enter(self, name):
        def hook(_, args, kwargs):
            for tensor in _tensors((args, kwargs)):
                self._add(tensor, self.inputs, self._came, name)
            self._inside.append(name)

        return hook

    def _leave(self, *_):
        self._inside.pop()

    @contextmanager
    def counted(self):
        hooks = []
        for name in self.units:
            unit = self.module.get_submodule(name)
            hooks.append(unit.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            hooks.append(unit.register_forward_hook(self._leave))
        try:
            with (
                _FusedKernels(repeats=False),
                torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor),
            ):
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def put_out(self, outputs):
        """Counts the module's outputs, which stay for the loss. Returns the bytes that the backward
        pass of cross_entropy() takes in addition when it begins: of logits that come out, the
        result of its softmax and the gradients of this result and of the logits, in fp32; of a
        loss within the module, the gradients alone."""
        vocabulary = {
            child.num_embeddings
            for child in self.module.modules()
            if isinstance(child, nn.Embedding)
        }
        vocabulary |= {
            value.shape[0]
            for name, value in self.module.named_parameters()
            if value.dim() == 2 and not any(name.startswith(unit + '.') for unit in self.units)
        }
        of_loss = 0
        for tensor in _tensors(outputs):
            self._add(tensor, self.saved, self._seen, '')
            if tensor.dim() > 1 and tensor.requires_grad and tensor.shape[-1] in vocabulary:
                of_loss += 3 * 4 * tensor.numel()
            else:
                of_loss += max(map(_softmax_gradients, _nodes(tensor.grad_fn)), default=0)
        return of_loss


def _flops(module, units, args):
    """Returns the operations of a forward pass: those of each unit, and under '' those outside of
    units."""
    # Before torch 2.8 the counter knows no groups of heads, which take the same operations.
    with _FusedKernels(repeats=True), FlopCounterMode(display=False) as counter:
        module(*args)
    counts = {name: sum(by_op.values()) for name, by_op in counter.get_flop_counts().items()}
    kind = type(module).__name__
    flops = {name: counts.get(f'{kind}.{name}', 0) for name in units}
    flops[''] = counter.get_total_flops() - sum(flops.values())
    return flops


def export_model(
    module, inputs=_tokens, *, sequence=2048, batch=1, units=None, name=None, path=None
):
    """Describes a module for `fsccl-info forecast` and fsccl_forecast(). Returns a dict, and writes
    it to the file `path` if that is given.

    module    must be on the meta device (`with torch.device("meta"): ...`), in the types in which
              it computes; it is run forward three times
    inputs    a function of (batch, sequence) that returns the arguments of forward() on the meta
              device; the default returns token ids
    sequence  the length in tokens: give that of the training. Activations are those of this length.
              Operations are counted at this length and at half of it, to find those that grow with
              the length
    batch     the number of sequences of a run
    units     names of the submodules that FSDP gathers, each as a unit of its own; the default is
              the elements of module lists. Parameters outside of these are the root's
    name      the model's name; the default is the module's class

    Each unit has the names and shapes of its parameters and these figures per token:
    "forward_flops", "forward_flops_per_context" (to be multiplied by the length),
    "activation_bytes" (what autograd saves; for the root also what the module returns) and
    "checkpoint_bytes" (what enters the unit, which is all that stays of it with checkpointing). The
    first one also has "loss_bytes": what the backward pass of cross_entropy() takes in addition when
    it begins. Logits that the module returns are taken to be cast to fp32 for it.
    Parameters that need no gradient are marked as frozen.
    Shared parameters belong to the first unit that has them. A unit without parameters of its own is
    part of the root, or of the first unit where no parameter is the root's. scaled_dot_product_attention()
    and RMSNorm count as the fused kernels that a GPU takes, which save no scores of pairs of tokens,
    and no copies in fp32. Raises ValueError
    if the module has no parameters or is not on the meta device, if a name is not one of a submodule, or if a unit is
    inside another one, and OSError if the file cannot be written.
    """
    if not any(True for _ in module.parameters()):
        raise ValueError('export_model: the module has no parameters, so FSDP has nothing to shard')
    for key, value in module.named_parameters():
        if not value.is_meta:
            raise ValueError(
                f'export_model: parameter {key} is on {value.device}: make the module '
                'with torch.device("meta")'
            )
    if sequence < 2:
        raise ValueError(f'export_model: sequence is {sequence}: give 2 or more tokens')
    if batch < 1:
        raise ValueError(f'export_model: batch is {batch}: give 1 or more sequences')
    if isinstance(units, str):
        raise ValueError(f'export_model: units is {units!r}: give a list of names')
    names = list(units) if units is not None else _default_units(module)
    known = dict(module.named_modules())
    missing = [unit for unit in names if unit not in known]
    if missing:
        raise ValueError(
            f'export_model: the module has no submodule {missing[0]!r}: give names as '
            'named_modules() has them'
        )
    inner = [name for name in names if any(name.startswith(unit + '.') for unit in names)]
    if inner:
        raise ValueError(
            f'export_model: unit {inner[0]!r} is inside another unit: leave one of the two out'
        )
    if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(f'export_model: {path}: there is no such folder')
    short = sequence // 2
    long_flops, short_flops = (
        _flops(module, names, inputs(batch, length)) for length in (sequence, short)
    )
    activations = _Activations(module, names)
    with activations.counted():
        of_loss = activations.put_out(module(*inputs(batch, sequence)))
    model = {
        'name': name or type(module).__name__,
        'sequence': sequence,
        'units': _units(module, names),
    }
    for unit, parts in zip(model['units'], _parts(model['units'], names)):
        most = sum(long_flops[part] for part in parts) / (batch * sequence)
        least = sum(short_flops[part] for part in parts) / (batch * short)
        saved = sum(activations.saved[part] for part in parts)
        unit['forward_flops_per_context'] = max(0.0, (most - least) / (sequence - short))
        unit['forward_flops'] = most - unit['forward_flops_per_context'] * sequence
        unit['activation_bytes'] = saved / (batch * sequence)
        unit['checkpoint_bytes'] = min(
            unit['activation_bytes'], activations.inputs[parts[0]] / (batch * sequence)
        )
    model['units'][0]['loss_bytes'] = of_loss / (batch * sequence)
    if path is not None:
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(model, file, indent=1)
            file.write('\n')
    return model


def _units(module, names):
    """Returns the units, first the root and then the others in the order of the module. Each
    parameter belongs to the first unit that has it."""
    params = {'root': [], **{name: [] for name in names}}
    for key, value in module.named_parameters():
        owner = next((name for name in names if key.startswith(name + '.')), 'root')
        short = key if owner == 'root' else key[len(owner) + 1 :]
        frozen = [] if value.requires_grad else ['frozen']
        params[owner].append([short, list(value.shape), *frozen])
    return [{'name': name, 'params': found} for name, found in params.items() if found]


def _parts(units, names):
    """Returns for each unit the keys of its figures, its own one first. The first unit also has those
    of the root and of the names that have no parameters."""
    own = ['' if unit['name'] == 'root' else unit['name'] for unit in units]
    return [[own[0], *({'', *names} - set(own))], *([key] for key in own[1:])]
