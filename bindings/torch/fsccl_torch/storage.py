# SPDX-License-Identifier: Apache-2.0
"""Puts memory behind a storage of torch that exists already, so that all its tensors show that
memory.

UntypedStorage._swap_data_ptr_() exchanges the memory of two storages. Torch 2.11 and older do not
have this function. For these, two words of the C++ object (c10::StorageImpl) are written from here:
the address and the size. Their places are found in storages whose address and size are known, by
looking for these values. Nothing is written unless they have the same places in all of these, and
unless a trial with another storage has succeeded. The storage never owns the memory, and while no
memory is behind it its size is 0.
"""

import ctypes
import functools

import torch

_WORDS = 8  # so many words of the C++ object are read; all its versions are larger
_SWAPS = hasattr(torch.UntypedStorage, '_swap_data_ptr_')


def can_be_exchanged() -> bool:
    """Returns whether this torch lets memory be put behind a storage."""
    return _SWAPS or _places() is not None


class Memory:
    """`size` bytes at an address, to be put behind storages on `device`. Somebody else owns
    them."""

    def __init__(self, address, size, make_storage):
        self._address, self._size = address, size
        self._other = make_storage(address, size) if _SWAPS else None

    def put_behind(self, storage):
        """Puts the memory behind an empty storage."""
        if _SWAPS:
            storage._swap_data_ptr_(self._other)
        else:
            _write(storage, self._address, self._size)

    def take_away(self, storage):
        if _SWAPS:
            storage._swap_data_ptr_(self._other)
        elif storage.nbytes():  # otherwise the program has resized it to 0 itself
            _write(storage, 0, 0)


def shows_memory(reference):
    """Returns whether the storage of a StorageWeakRef is alive and has memory behind it."""
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage is not None and storage.nbytes() > 0


def _words(storage):
    return (ctypes.c_uint64 * _WORDS).from_address(storage._cdata)


def _write(storage, address, size):
    at_address, at_size = _places()
    words = _words(storage)
    words[at_address], words[at_size] = address, size


@functools.cache
def _places():
    """Returns the indices of the words of a storage that hold its address and its size, or None if
    they are not found."""
    found = None
    for size in (4093, 8191, 12289):
        storage = torch.UntypedStorage(size)
        words = list(_words(storage))
        here = [
            [i for i, word in enumerate(words) if word == value]
            for value in (storage.data_ptr(), size)
        ]
        # The address occurs twice if the object that frees the memory is the memory itself. The
        # first occurrence is the one that torch reads.
        places = (here[0][0], here[1][0]) if here[0] and len(here[1]) == 1 else None
        if places is None or found not in (None, places):
            return None
        found = places
    return found if _trial(*found) else None


def _trial(at_address, at_size):
    """Returns whether a storage shows other memory when its words are written, and is empty
    afterwards."""
    tensor, other = torch.empty(5, dtype=torch.float64), torch.arange(5, dtype=torch.float64)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    words = _words(storage)
    before = list(words)
    words[at_address], words[at_size] = other.data_ptr(), other.nbytes
    shown = (
        storage.data_ptr() == other.data_ptr()
        and storage.nbytes() == other.nbytes
        and torch.equal(tensor, other)
    )
    words[at_address], words[at_size] = before[at_address], before[at_size]
    return shown and storage.nbytes() == 0 and storage.data_ptr() == 0
