# SPDX-License-Identifier: Apache-2.0
"""Tests PyTorch's CUDAPluggableAllocator over fsccl without a GPU: PyTorch accepts the library's
two functions, and they do what they should when they are called as PyTorch calls them. Memory of a
GPU is tested on machines that have one."""

import ctypes
import os

import pytest
import torch
from fsccl_torch import _header as c

LIBRARY = os.environ['FSCCL_TORCH_LIBRARY']


@pytest.fixture(name='fsccl')
def _fsccl():
    library = ctypes.CDLL(LIBRARY)
    c.declare(library)
    return library


def test_pytorch_takes_the_functions(fsccl):
    pluggable = torch.cuda.memory.CUDAPluggableAllocator(
        LIBRARY, 'fsccl_torch_malloc', 'fsccl_torch_free'
    )
    assert pluggable.allocator() is not None
    with pytest.raises(AttributeError):
        torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, 'fsccl_torch_none', 'fsccl_torch_free')
    assert fsccl.fsccl_torch_malloc(0, 0, None) is None  # an empty tensor


def test_the_package_names_its_library():
    """mem_pool() passes the library's name to PyTorch, which loads the library by it."""
    from fsccl_torch import _capi

    pluggable = torch.cuda.memory.CUDAPluggableAllocator(
        str(_capi.path()), 'fsccl_torch_malloc', 'fsccl_torch_free'
    )
    assert os.path.samefile(_capi.path(), LIBRARY) and pluggable.allocator() is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="the memory below is the host's")
def test_blocks_come_from_the_allocator_of_the_device(fsccl):
    host, limit = c.Allocator(), c.Allocator()
    assert fsccl.fsccl_torch_malloc(4096, 0, None) is None  # no allocator serves the device
    assert fsccl.fsccl_allocator_host(ctypes.byref(host)) == 0
    assert fsccl.fsccl_allocator_limit(ctypes.byref(host), 10000, ctypes.byref(limit)) == 0
    assert fsccl.fsccl_torch_use(0, ctypes.byref(limit)) == 0
    block = fsccl.fsccl_torch_malloc(8000, 0, None)
    ctypes.memset(block, 7, 8000)
    assert ctypes.string_at(block + 7999, 1) == b'\7'
    assert (
        fsccl.fsccl_torch_malloc(8000, 0, None) is None
    )  # beyond the limit the result is NULL, which a MemPool takes for out-of-memory
    fsccl.fsccl_torch_free(block, 8000, 0, None)
    again = fsccl.fsccl_torch_malloc(8000, 0, None)
    assert again is not None
    fsccl.fsccl_torch_free(again, 8000, 0, None)
    fsccl.fsccl_torch_free(again, 8000, 0, None)  # a second time, which must not abort
    assert fsccl.fsccl_torch_use(0, None) == 0
    assert limit.destroy(limit.context) == 0 and host.destroy(host.context) == 0
