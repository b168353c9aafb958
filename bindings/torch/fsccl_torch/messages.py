# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks of a group in host memory, matched by their tags.

fsccl_send() and fsccl_recv() match in the order of their calls. torch's messages match by tag, in
whatever order they are received. So each message of torch is two messages of FSCCL: an envelope
with tag and size, and then the contents. The receiver reads the envelope. If a receive with this
tag has been posted, the contents go to its memory. Otherwise they go to memory of the receiver's
own, where a later receive finds them. The threads that complete futures do this whenever an
envelope arrives, so a rank receives messages also while it waits for a send of its own.
"""

import collections
import ctypes
import threading
import time
import weakref

import torch

from . import _capi as c
from .message import ENVELOPE_WORDS, Inbox, Message, Receive, Unclaimed
from .turns import run_later
from .work import run_last

_ENVELOPE_TAG = 0
_SENT, _RECEIVED = (
    f'{call} (its envelope, {ENVELOPE_WORDS} int64 with tag {_ENVELOPE_TAG})'
    for call in ('send', 'recv')
)
# FSCCL has at most so many messages to one rank at a time. It has room for 64 operations, and a
# thread that submits one more would have to wait.
_IN_FLIGHT = 16
_FAREWELL = -1  # in the place of the size of an envelope: its sender destroys the group
_FAREWELL_S = 5  # a rank that destroys its group waits so long for the farewells of others
_SLICE_S = 0.5  # a wait returns to Python this often, so that Ctrl-C takes effect
# The pause between two looks for messages of any rank is between these.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 1e-3


class Messages:
    """The messages of one communicator."""

    def __init__(self, comm):
        self._comm = comm
        # It is notified when a posted message got its work, or failed.
        self._changed = threading.Condition(threading.RLock())
        self._posted, self._unclaimed = [], []  # in the order of posting and of arrival
        self._inboxes, self._queues, self._in_flight = (
            {},
            {},
            collections.defaultdict(collections.deque),
        )
        self._watching = False  # a thread looks for messages of any rank
        self._directions = set()
        self._parting = False  # a rank said farewell, and may wait for that of this rank

    # ----------------------------------------------------------------------------------------------
    # sending ----

    def send(self, peer, tag, place, keep, result):
        if peer == self._comm.rank:
            return self._send_to_self(tag, place, keep, result)
        arguments = (
            peer,
            tag,
            torch.tensor([tag, place[1], place[2], keep.nbytes]),
            place,
            keep,
            result,
        )
        with self._changed:
            queue = self._queues.setdefault(peer, collections.deque())
            full = self._full_of(peer)
            if not queue and full is None:
                return self._submit(*arguments)
            message = Message(self, 'send', result)
            queue.append((message, arguments))
            if len(queue) == 1:
                self._when_over(full, self._send_queued, peer)
            return message

    def _full_of(self, peer):
        """Returns the oldest message to a rank if no other fits beside those in flight, or None.
        The references are weak, so that a program may drop a work and its tensor."""
        in_flight = self._in_flight[peer]
        while in_flight:
            oldest = in_flight[0]()
            if oldest is not None and not oldest.test():
                return oldest if len(in_flight) >= _IN_FLIGHT else None
            in_flight.popleft()
        return None

    def _submit(self, peer, tag, envelope, place, keep, result):
        """Gives a message to FSCCL, and returns the work of its contents."""
        work = self._send_envelope(peer, envelope, result)
        if place[1]:
            work = self._issue(
                'send', c.lib.fsccl_send, place, peer, tag, (keep, envelope), result, work.test
            )
        self._in_flight[peer].append(weakref.ref(work))
        return work

    def _send_envelope(self, peer, envelope, result):
        return self._issue(
            _SENT,
            c.lib.fsccl_send,
            (envelope.data_ptr(), ENVELOPE_WORDS, c.INT64),
            peer,
            _ENVELOPE_TAG,
            envelope,
            result,
        )

    def _send_queued(self, peer):
        queue = self._queues[peer]
        while queue:
            full = self._full_of(peer)
            if full is not None:
                self._when_over(full, self._send_queued, peer)
                return
            message, arguments = queue.popleft()
            self._start(message, self._submit, *arguments)

    def _send_to_self(self, tag, place, keep, result):
        memory = keep.detach().clone()
        with self._changed:
            found = Unclaimed(
                self._comm.rank, tag, place[1:], memory, self._comm.done('recv', None)
            )
            message = self._take_posted(self._comm.rank, tag)
            if message is None:
                self._unclaimed.append(found)
            else:
                self._start(message, self._claim, message, found)
        return self._comm.done('send', result)

    # ----------------------------------------------------------------------------------------------
    # issuing ----

    def _issue(self, call, function, place, peer, tag, keep, result, finish=None):
        return self._comm.submit(
            call,
            function,
            (*place, peer, tag),
            keep,
            result,
            finish,
            in_order=False,
            lock=self._lock_for(function, peer),
        )

    def exclusively(self):
        """Returns a context in which a message may be issued without this class."""
        return self._changed

    def _lock_for(self, function, peer):
        """Returns the lock under which a message is issued. In FSCCL the messages of one direction
        between two ranks are a communicator of their own, which the first such message makes under
        the lock of the group's communicator. Later messages need only the lock of this class. This
        matters because a thread may hold the communicator's lock until the peers of a collective
        arrive, and these may be waiting for a message."""
        direction = function is c.lib.fsccl_send, peer
        known = direction in self._directions
        self._directions.add(direction)
        return self._changed if known else self._comm.lock

    # ----------------------------------------------------------------------------------------------
    # receiving ----

    def receive(self, source, tag, place, keep, result, finish):
        """Posts a receive. `source` is None for a message of any rank."""
        message = Receive(self, source, tag, place, keep, result, finish)
        with self._changed:
            found = next(
                (one for one in self._unclaimed if message.wants(one.source, one.tag)), None
            )
            if found is not None:
                self._unclaimed.remove(found)
                self._start(message, self._claim, message, found)
                return message
            self._posted.append(message)
            if source is None:
                # This makes the directions in this thread: another one might wait for the lock of
                # the communicator that this thread holds in a later collective.
                self._look()
                self._watch_all()
            elif source != self._comm.rank:
                self._receive_from(source)
        return message

    def _receive_from(self, peer):
        """Receives what arrives from a rank, as long as a receive wants a message of it."""
        inbox = self._inboxes.setdefault(peer, Inbox(peer))
        try:
            while (
                inbox.envelope is not None
                or any(one.wanted == peer for one in self._posted)
                or self._has_come(peer)
            ):
                if inbox.envelope is None:
                    inbox.envelope = self._issue(
                        _RECEIVED,
                        c.lib.fsccl_recv,
                        (inbox.words.data_ptr(), ENVELOPE_WORDS, c.INT64),
                        peer,
                        _ENVELOPE_TAG,
                        inbox.words,
                        [],
                    )
                    if not inbox.envelope.test():
                        self._when_over(inbox.envelope, self._receive_from, peer)
                if not inbox.envelope.test():
                    return
                inbox.envelope.wait()  # raises the error if it has failed
                inbox.envelope = None
                self._receive_contents(peer, *inbox.words.tolist())
        except c.FscclError as error:
            inbox.envelope = None
            self._fail(error, peer)

    def _receive_contents(self, source, tag, count, code, size):
        if size == _FAREWELL:
            self._parting = True
            for one in [one for one in self._posted if one.wanted == source]:
                self._posted.remove(one)
                one.error = c.FscclError(
                    f'{self._comm.who()}: recv: rank {source} of the group destroyed the group and '
                    f'sends no message with tag {one.tag}: send before destroy_process_group()',
                    c.ERR_PEER_DEAD,
                    self._comm.rank,
                    source,
                )
            self._changed.notify_all()
            return
        message = self._take_posted(source, tag)
        # If the receive wants other contents, FSCCL reports the mismatch to both ranks.
        if message is not None:
            empty = count == 0 and message.place[1] == 0
            self._start(
                message,
                self._contents,
                source,
                tag,
                None if empty else message.place,
                message.keep,
                message.finish,
            )
        else:
            memory = torch.empty(size, dtype=torch.uint8)
            work = self._contents(
                source, tag, (memory.data_ptr(), count, code) if count else None, memory
            )
            self._unclaimed.append(Unclaimed(source, tag, (count, code), memory, work))

    def _contents(self, source, tag, place, keep, finish=None):
        """Returns the work that receives the contents. `place` is None if there are none."""
        if place is None:
            return self._comm.done('recv', None)
        return self._issue('recv', c.lib.fsccl_recv, place, source, tag, keep, None, finish)

    def _take_posted(self, source, tag):
        message = next((one for one in self._posted if one.wants(source, tag)), None)
        if message is not None:
            self._posted.remove(message)
            message.source = source
        return message

    def _claim(self, message, found):
        """Gives contents that have arrived, or are arriving, to the receive that asks for them."""
        message.source = found.source
        if found.kind != message.place[1:]:
            self._comm.abort()
            raise c.FscclError(
                f'{self._comm.who()}: recv: the message with tag {found.tag} of rank '
                f'{found.source} has '
                f"{found.kind[0]} elements of FSCCL's type {found.kind[1]}, and the receive wants "
                f'{message.place[1]} of type {message.place[2]}: give both tensors of one shape '
                f'and dtype. The '
                'group was aborted.',
                c.ERR_MISMATCH,
                self._comm.rank,
                found.source,
            )

        def bring():
            ctypes.memmove(message.place[0], found.memory.data_ptr(), found.memory.nbytes)
            if message.finish:
                run_last(message.finish)

        message.after = bring
        return found.work

    # ------------------------------------------------------------------------------------------
    # from any rank ----

    def _has_come(self, peer):
        """Returns whether a message of that rank has arrived and some receive accepts any rank."""
        if not self._wants_any():
            return False
        with self._lock_for(c.lib.fsccl_recv, peer):
            return c.lib.fsccl_probe(peer, self._comm.handle) == c.OK

    def _look(self):
        for peer in range(self._comm.size):
            if peer != self._comm.rank:
                self._receive_from(peer)

    def _wants_any(self):
        return any(one.wanted is None for one in self._posted)

    def _watch_all(self):
        if self._wants_any() and not self._watching:
            self._watching = self._comm.watched = True
            run_later(self._look_at_all, torch.futures.Future())

    def _look_at_all(self):
        """Looks for messages of all ranks until no receive accepts any rank. Runs in a thread of
        its own."""
        pause = _SHORTEST_PAUSE_S
        while True:
            with self._changed:
                before = len(self._posted)
                self._look()
                if self._comm.state() < 0:
                    self._fail(self._comm.failure(self._comm.state(), 'recv'), None)
                if not self._wants_any():
                    self._watching = False
                    return
                pause = (
                    _SHORTEST_PAUSE_S
                    if len(self._posted) < before
                    else min(2 * pause, _LONGEST_PAUSE_S)
                )
            time.sleep(pause)

    # ----------------------------------------------------------------------------------------------
    # the end ----

    def close(self):
        """Ends receives that no message has reached, so that the group can be destroyed. Each rank
        that has some says farewell to all ranks, and receives their farewells: otherwise ranks
        would wait for each other. If others do not destroy the group soon, or had no reason to say
        farewell, the group is aborted."""
        comm = self._comm
        if not comm.handle or comm.state() < 0 or not (self._unreached() or self._parting):
            return
        comm.finish(self._unreached())
        farewell = torch.tensor([0, 0, 0, _FAREWELL])
        with self._changed:
            works = self._unreached()
            for peer in range(comm.size):
                if peer != comm.rank:
                    works.append(self._send_envelope(peer, farewell, []))
        until = time.monotonic() + _FAREWELL_S
        for work in works:
            work.wait_briefly(max(0, until - time.monotonic()))
        if not all([work.test() for work in works]):
            comm.abort()

    def _unreached(self):
        with self._changed:
            for peer in list(self._inboxes):
                self._receive_from(peer)  # a farewell may have come
            envelopes = [inbox.envelope for inbox in self._inboxes.values()]
        return [envelope for envelope in envelopes if envelope is not None]

    # ----------------------------------------------------------------------------------------------
    # waiting ----

    def _start(self, message, begin, *arguments):
        try:
            message.work = begin(*arguments)
        except c.FscclError as error:
            message.error = error
        self._changed.notify_all()

    def _fail(self, error, peer):
        """Gives the error to the receives that `peer` could have satisfied. None stands for all
        ranks."""
        for message in [
            one for one in self._posted if one.wanted is None or peer in (None, one.wanted)
        ]:
            self._posted.remove(message)
            message.error = error
        self._changed.notify_all()

    def _when_over(self, work, act, peer):
        def locked(_):
            with self._changed:
                act(peer)

        over = torch.futures.Future()
        over.add_done_callback(locked)
        work.when_over(over)

    def complete_later(self, before, future):
        self._comm.watched = True
        run_later(before, future)

    def finish(self, message):
        with self._changed:
            after, message.after = message.after, None
            if after:
                after()

    def await_work(self, message, call, timeout):
        """Waits until FSCCL has the message. Raises its error, or an error when the time is
        over."""
        comm = self._comm
        limit_ms = c.milliseconds(timeout) or comm.limit_ms or comm.timeout_ms
        until = time.monotonic() + limit_ms / 1000
        while True:
            with self._changed:
                envelope = self._envelope_for(message)
                if message.error is not None:
                    raise message.error
                if message.work is not None:
                    return
                left = until - time.monotonic()
                if left <= 0:
                    break
                if envelope is None:
                    self._changed.wait(min(left, _SLICE_S))
            if envelope is not None:
                envelope.wait_briefly(min(left, _SLICE_S))
        raise comm.late(call, limit_ms, bool(timeout))

    def _envelope_for(self, message):
        """Returns the envelope for which a receive waits, or None if it is not known which."""
        peer = getattr(message, 'wanted', None)
        if message.work is None and message.error is None and peer in self._inboxes:
            self._receive_from(peer)
            return self._inboxes[peer].envelope
        return None
