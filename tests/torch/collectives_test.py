# SPDX-License-Identifier: Apache-2.0
"""Tests every collective of torch.distributed over fsccl, for all dtypes, contiguous or not. The
result must be what is computed here from the inputs of all ranks."""

import functools

import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*FLOATS, *INTEGERS, torch.bool, *FP8, *COMPLEX, torch.uint16, torch.uint32, torch.uint64]
FORMS = ['plain', 'transposed', 'sliced', 'empty', 'scalar']


@pytest.fixture(scope='module', params=[2, 3])
def group(request):
    with ranks_.Ranks(request.param) as started:
        yield started


def values(rank, shape, dtype):
    """Returns the input of `rank`: small numbers, so that every dtype holds them."""
    generator = torch.Generator().manual_seed(1000 + rank)
    numbers = torch.randint(0, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(
            numbers.double(), torch.randint(0, 4, shape, generator=generator).double()
        ).to(dtype)
    if dtype.is_floating_point and dtype.itemsize > 1:
        return (numbers + torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype)
    return (numbers % 2 if dtype is torch.bool else numbers).to(dtype)


def formed(tensor, form):
    """Returns the same numbers in another arrangement in memory."""
    if form == 'transposed':
        return tensor.t().clone(memory_format=torch.contiguous_format).t()
    if form == 'sliced':
        wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    return tensor.clone()


def shape_of(form, rows=6):
    return {'empty': (0, 3), 'scalar': ()}.get(form, (rows, 5))


def out(shape, dtype, form):
    return formed(torch.ones(shape, dtype=dtype), form)


def same(found, expected, exact=True):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if exact:
        found, expected = found.contiguous().view(-1), expected.contiguous().view(-1)
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), (found, expected)
    else:
        torch.testing.assert_close(found, expected)


def here():
    return dist.get_rank(), dist.get_world_size()


# --------------------------------------------------------------------------------------------------
# moving ----


def move(dtype, form):
    rank, size = here()
    shape = shape_of(form)
    mine, theirs = (
        formed(values(rank, shape, dtype), form),
        [values(peer, shape, dtype) for peer in range(size)],
    )
    listed = [out(shape, dtype, form) for _ in range(size)]
    dist.all_gather(listed, mine)
    for peer in range(size):
        same(listed[peer], theirs[peer])
    if shape:
        gathered = out((size * shape[0], shape[1]), dtype, form)
        dist.all_gather_single(gathered, mine)
        same(gathered, torch.cat(theirs))
    for root in range(size):
        buffer = formed(mine, form)
        dist.broadcast(buffer, root)
        same(buffer, theirs[root])
        parts = [out(shape, dtype, form) for _ in range(size)] if rank == root else None
        dist.gather(mine, parts, root)
        for peer in range(size if rank == root else 0):
            same(parts[peer], theirs[peer])
        received = out(shape, dtype, form)
        sent = (
            [formed(values(peer + 10, shape, dtype), form) for peer in range(size)]
            if rank == root
            else None
        )
        dist.scatter(received, sent, root)
        same(received, values(rank + 10, shape, dtype))
    same(mine, theirs[rank])  # the calls above did not change the input


def exchange(dtype, form):
    rank, size = here()
    shape = shape_of(form)
    sent = [formed(values(10 * rank + peer, shape, dtype), form) for peer in range(size)]
    received = [out(shape, dtype, form) for _ in range(size)]
    dist.all_to_all(received, sent)
    for peer in range(size):
        same(received[peer], values(10 * peer + rank, shape, dtype))
    if shape:
        whole = out((size * shape[0], shape[1]), dtype, form)
        dist.all_to_all_single(whole, formed(torch.cat(sent), form))
        same(whole, torch.cat([values(10 * peer + rank, shape, dtype) for peer in range(size)]))
        # rank a sends a + b rows to rank b
        rows = [rank + peer for peer in range(size)]
        whole = out((sum(rows), 3), dtype, form)
        given = torch.cat(
            [values(10 * rank + peer, (rank + peer, 3), dtype) for peer in range(size)]
        )
        dist.all_to_all_single(whole, formed(given, form), rows, rows)
        same(
            whole,
            torch.cat([values(10 * peer + rank, (rank + peer, 3), dtype) for peer in range(size)]),
        )


def messages(dtype, form):
    rank, size = here()
    shape, after, before = shape_of(form), (rank + 1) % size, (rank - 1) % size
    mine, received = formed(values(rank, shape, dtype), form), out(shape, dtype, form)
    if rank == 0:
        dist.send(mine, after, tag=3)
        assert dist.recv(received, before, tag=3) == before
    else:
        dist.recv(received, before, tag=3)
        dist.send(mine, after, tag=3)
    same(received, values(before, shape, dtype))
    received = out(shape, dtype, form)
    for work in [dist.irecv(received, before), dist.isend(mine, after)]:
        work.wait()
    same(received, values(before, shape, dtype))
    received = out(shape, dtype, form)
    operations = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received, values(before, shape, dtype))


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('dtype', ALL, ids=str)
@pytest.mark.parametrize('case', [move, exchange, messages], ids=lambda case: case.__name__)
def test_moves(group, case, dtype, form):
    group.run(case, dtype, form)


# --------------------------------------------------------------------------------------------------
# reducing ----

REDUCTIONS = {
    'SUM': torch.add,
    'AVG': torch.add,
    'PREMUL_SUM': torch.add,
    'PRODUCT': torch.mul,
    'MIN': torch.minimum,
    'MAX': torch.maximum,
    'BAND': torch.bitwise_and,
    'BOR': torch.bitwise_or,
    'BXOR': torch.bitwise_xor,
}
FACTOR = 0.3


def operator(name):
    return dist._make_nccl_premul_sum(FACTOR) if name == 'PREMUL_SUM' else getattr(ReduceOp, name)


def reduced(parts, name):
    """Returns the sums in rank order; 16-bit floats and fp8 are summed in fp32 and rounded once."""
    dtype = parts[0].dtype
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize <= 2 else dtype
    if dtype is torch.bool and name in ('SUM', 'PRODUCT'):
        name = {'SUM': 'BOR', 'PRODUCT': 'BAND'}[name]
    if dtype is torch.bool and name in ('MIN', 'MAX'):
        name = {'MIN': 'BAND', 'MAX': 'BOR'}[name]
    parts = [part.to(wide) * FACTOR if name == 'PREMUL_SUM' else part.to(wide) for part in parts]
    result = functools.reduce(REDUCTIONS[name], parts)
    if name == 'AVG':
        result = result.div(
            len(parts),
            rounding_mode=None if dtype.is_floating_point or dtype.is_complex else 'trunc',
        )
    return result.to(dtype)


def reduce(dtype, name, form):
    rank, size = here()
    shape, op, exact = shape_of(form), operator(name), name not in ('AVG', 'PREMUL_SUM')
    theirs = [values(peer, shape, dtype) for peer in range(size)]
    expected = reduced(theirs, name)
    buffer = formed(theirs[rank], form)
    dist.all_reduce(buffer, op)
    same(buffer, expected, exact)
    for root in range(size):
        buffer = formed(theirs[rank], form)
        dist.reduce(buffer, root, op)
        same(buffer, expected if rank == root else theirs[rank], exact)
    wholes = [
        values(peer, (size * shape[0], shape[1]) if shape else (size,), dtype)
        for peer in range(size)
    ]
    part = out(shape, dtype, form)
    parts = [whole.view(size, *shape)[rank] for whole in wholes]
    if shape:
        dist.reduce_scatter_single(part, formed(wholes[rank], form), op)
        same(part, reduced(parts, name), exact)
    part = out(shape, dtype, form)
    dist.reduce_scatter(
        part, [formed(piece, form) for piece in wholes[rank].view(size, *shape)], op
    )
    same(part, reduced(parts, name), exact)


def cases():
    for dtype in FLOATS:
        yield from ((dtype, name) for name in ('SUM', 'AVG', 'PREMUL_SUM', 'PRODUCT', 'MIN', 'MAX'))
    for dtype in INTEGERS:
        yield from (
            (dtype, name) for name in ('SUM', 'AVG', 'PRODUCT', 'MIN', 'MAX', 'BAND', 'BOR', 'BXOR')
        )
    yield from (
        (torch.bool, name) for name in ('SUM', 'PRODUCT', 'MIN', 'MAX', 'BAND', 'BOR', 'BXOR')
    )
    yield from ((dtype, name) for dtype in FP8 for name in ('SUM', 'AVG', 'MAX'))
    yield from ((dtype, name) for dtype in COMPLEX for name in ('SUM', 'AVG'))


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('dtype, name', list(cases()), ids=str)
def test_reduces(group, dtype, name, form):
    group.run(reduce, dtype, name, form)


# ----------------------------------------------------------------------------------------------
# uneven, coalesced ----


def uneven():
    rank, size = here()
    shapes = [(peer, 3) for peer in range(size)]  # rank 0 has nothing
    listed = [torch.empty(shape) for shape in shapes]
    dist.all_gather(listed, values(rank, shapes[rank], torch.float32))
    for peer in range(size):
        same(listed[peer], values(peer, shapes[peer], torch.float32))
    wholes = [
        [values(10 * peer + to, shapes[to], torch.float32) for to in range(size)]
        for peer in range(size)
    ]
    part = torch.empty(shapes[rank])
    dist.reduce_scatter(part, wholes[rank])
    same(part, reduced([whole[rank] for whole in wholes], 'SUM'))
    # The outputs lie in one storage in the order of the ranks, so they are gathered in place.
    flat = torch.zeros(sum(peer * 3 for peer in range(size)))
    listed = [
        piece.view(shape)
        for piece, shape in zip(flat.split([peer * 3 for peer in range(size)]), shapes)
    ]
    listed[rank].copy_(values(rank, shapes[rank], torch.float32))
    dist.all_gather(listed, listed[rank])
    for peer in range(size):
        same(listed[peer], values(peer, shapes[peer], torch.float32))


def coalesced(form, async_ops):
    rank, size = here()
    shapes, dtypes = [(2, 3), (5, 1), (7, 4)], [torch.float32, torch.float32, torch.bfloat16]
    mine = [formed(values(rank, shape, dtype), form) for shape, dtype in zip(shapes, dtypes)]
    gathered = [
        out((size * shape[0], shape[1]), dtype, form) for shape, dtype in zip(shapes, dtypes)
    ]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for output, given in zip(gathered, mine):
            dist.all_gather_single(output, given)
    manager.wait()
    for output, shape, dtype in zip(gathered, shapes, dtypes):
        same(output, torch.cat([values(peer, shape, dtype) for peer in range(size)]))
    wholes = [
        [values(peer, (size * shape[0], shape[1]), dtype) for peer in range(size)]
        for shape, dtype in zip(shapes, dtypes)
    ]
    parts = [out(shape, dtype, form) for shape, dtype in zip(shapes, dtypes)]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for output, whole in zip(parts, wholes):
            dist.reduce_scatter_single(output, formed(whole[rank], form))
    manager.wait()
    for output, whole, shape in zip(parts, wholes, shapes):
        same(output, reduced([one.view(size, *shape)[rank] for one in whole], 'SUM'))
    buffers = [formed(tensor, form) for tensor in mine]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for buffer in buffers:
            dist.all_reduce(buffer)
    manager.wait()
    for buffer, shape, dtype in zip(buffers, shapes, dtypes):
        same(buffer, reduced([values(peer, shape, dtype) for peer in range(size)], 'SUM'))


def coalesced_bits():
    """An all-reduce as one operation and one as a list give the same bits, also where a rank's part
    is uneven or empty."""
    rank, _ = here()
    tensors = [
        torch.randn(count, generator=torch.Generator().manual_seed(rank))
        for count in (1, 2, 3, 1001, 40000)
    ]
    alone = [tensor.clone() for tensor in tensors]
    for tensor in alone:
        dist.all_reduce(tensor)
    dist.all_reduce_coalesced(tensors)
    for tensor, expected in zip(tensors, alone):
        same(tensor, expected)


def functional():
    import torch.distributed._functional_collectives as functions

    rank, size = here()
    world = dist.group.WORLD
    mine = values(rank, (4, 3), torch.float32)
    theirs = [values(peer, (4, 3), torch.float32) for peer in range(size)]
    same(
        functions.all_gather_single(mine, 0, world).wait()
        if hasattr(functions, 'all_gather_single')
        else functions.all_gather_tensor(mine, 0, world).wait(),
        torch.cat(theirs),
    )
    same(functions.all_reduce(mine, 'sum', world).wait(), reduced(theirs, 'SUM'))
    parts = functions.all_gather_into_tensor_coalesced([mine, 2 * mine], world)
    same(parts[0].wait(), torch.cat(theirs))
    same(parts[1].wait(), torch.cat([2 * one for one in theirs]))


def overlapping_lists():
    """The tensors of the list lie apart in memory, and a tensor of the list is the input."""
    rank, size = here()
    apart = torch.zeros(size, 2, 4)[:, 0]
    listed = list(apart)
    listed[rank].fill_(rank + 1)
    dist.all_gather(listed, listed[rank])
    assert apart.tolist() == [[peer + 1.0] * 4 for peer in range(size)]


def overlapping():
    """The input is a part of the output, or the output of the input, also where this is not the
    in-place form of the collective on this rank. The results are those over gloo."""
    rank, size = here()
    n = 5
    mine = torch.arange(n * size) + 100.0 * rank
    theirs = [torch.arange(n * size) + 100.0 * peer for peer in range(size)]
    total, part = sum(theirs), slice(rank * n, (rank + 1) * n)
    for offset in range(n * (size - 1) + 1):
        reduced, gathered, scattered = mine.clone(), mine.clone(), mine.clone()
        place = slice(offset, offset + n)
        dist.reduce_scatter_single(reduced[place], reduced)
        same(reduced[place], total[part])
        dist.all_gather_single(gathered, gathered[place])
        same(gathered, torch.cat([one[place] for one in theirs]))
        dist.scatter(scattered[place], list(scattered.split(n)) if rank == 1 else None, src=1)
        same(scattered[place], theirs[1][part])
    for own in range(size):
        rows = [mine.clone().view(size, n) for _ in range(5)]
        dist.all_gather(list(rows[0].unbind()), rows[0][own])
        same(rows[0], torch.stack([one.view(size, n)[own] for one in theirs]))
        dist.gather(rows[1][own], list(rows[1].unbind()) if rank == 1 else None, dst=1)
        same(rows[1], rows[0] if rank == 1 else mine.view(size, n))
        dist.reduce_scatter(rows[2][own], list(rows[2].unbind()))
        same(rows[2][own], total[part])
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.reduce_scatter_single(rows[3][own], rows[3].view(-1))
            dist.reduce_scatter_single(torch.empty(n), mine)
        manager.wait()
        same(rows[3][own], total[part])
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_gather_single(rows[4].view(-1), rows[4][own])
            dist.all_gather_single(torch.empty(n * size), torch.empty(n))
        manager.wait()
        same(rows[4], rows[0])
    swapped, listed = mine.clone(), mine.clone().view(size, n)
    dist.all_to_all_single(swapped, swapped)
    same(swapped, torch.cat([one[part] for one in theirs]))
    dist.all_to_all(list(listed.unbind()), list(listed.unbind()))
    same(listed.view(-1), swapped)


def negated():
    """The view is negative only in name (torch refuses conjugate views itself)."""
    rank, size = here()
    mine = values(rank, (3, 4), torch.complex64)
    imaginary = [torch.empty(3, 4) for _ in range(size)]
    dist.all_gather(imaginary, mine.conj().imag)
    for peer in range(size):
        same(imaginary[peer], -values(peer, (3, 4), torch.complex64).imag)


def sparse():
    rank, size = here()
    tensor = torch.sparse_coo_tensor(
        [[rank, 4]], [[1.0, 2.0], [3.0, 4.0]], (5, 2), check_invariants=True
    )
    dist.all_reduce(tensor)
    expected = torch.zeros(5, 2)
    for peer in range(size):
        expected[peer] += torch.tensor([1.0, 2.0])
        expected[4] += torch.tensor([3.0, 4.0])
    same(tensor.to_dense(), expected)


def objects():
    rank, size = here()
    theirs = [{'rank': peer, 'text': 'x' * peer} for peer in range(size)]
    gathered = [None] * size
    dist.all_gather_object(gathered, theirs[rank])
    assert gathered == theirs
    listed = list(theirs) if rank == 1 else [None] * size
    dist.broadcast_object_list(listed, 1)
    assert listed == theirs
    collected = [None] * size if rank == 0 else None
    dist.gather_object(theirs[rank], collected, 0)
    assert rank != 0 or collected == theirs
    received = [None]
    dist.scatter_object_list(received, theirs if rank == 1 else None, 1)
    assert received == [theirs[rank]]
    if rank == 0:
        dist.send_object_list(theirs, 1)
    elif rank == 1:
        received = [None] * size
        dist.recv_object_list(received, 0)
        assert received == theirs


@pytest.mark.parametrize(
    'case',
    [uneven, coalesced_bits, functional, overlapping_lists, overlapping, negated, sparse, objects],
    ids=lambda case: case.__name__,
)
def test_forms(group, case):
    group.run(case)


@pytest.mark.parametrize('async_ops', [False, True])
@pytest.mark.parametrize('form', ['plain', 'transposed', 'sliced'])
def test_coalesced(group, form, async_ops):
    group.run(coalesced, form, async_ops)


def large():
    """The tensors are larger than a slot, so they travel in several rounds. Some lie in the
    pool."""
    rank, size = here()
    backend = dist.group.WORLD._get_backend(torch.device('cpu'))
    for new in (
        lambda *shape: torch.empty(*shape),
        lambda *shape: backend.allocate_tensor(shape, dtype=torch.float32),
    ):
        mine, gathered = new(1 << 19), new(size << 19)
        mine.fill_(rank + 1)
        dist.all_gather_single(gathered, mine)
        assert gathered.view(size, -1).sum(1).tolist() == [
            (peer + 1) * 2.0**19 for peer in range(size)
        ]
        dist.reduce_scatter_single(mine, gathered)
        assert mine.eq(size * (rank + 1)).all()


def test_large(group):
    group.run(large)
