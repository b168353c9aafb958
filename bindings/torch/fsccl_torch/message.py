# SPDX-License-Identifier: Apache-2.0
"""One message, as the program sees it and as it arrives (messages.py has those of a group)."""

import torch

from .held import HeldWork

ENVELOPE_WORDS = 4


class Message(HeldWork):
    """A message. `work` is None as long as FSCCL does not have the message. `after` is a step that
    follows the work, or None."""

    in_order = False

    def __init__(self, messages, call, result):
        super().__init__()
        self._messages, self._call, self._result = messages, call, result
        self.work = self.after = self.error = self.source = self._future = None

    def wait(self, timeout=None):
        self._messages.await_work(self, self._call, timeout)
        self.work.wait(timeout)
        self._messages.finish(self)
        return True

    def test(self):
        """Returns True when the message has been received or sent, or has failed. Does not wait."""
        if self.error is not None:
            return True
        if self.work is None or not self.work.test():
            return False
        self._messages.finish(self)
        return True

    def is_success(self):
        return self.test() and self.error is None and self.work.is_success()

    def _source_rank(self):
        return self.source

    def results(self):
        return self._result

    def future(self):
        if self._future is None:
            over = torch.futures.Future()
            self._future = over.then(self._outcome)
            self._messages.complete_later(self.wait, over)
        return self._future

    def _outcome(self, _over):
        self.wait()
        return self._result


class Receive(Message):
    """A receive that was posted. `place` is what fsccl_recv takes of the tensor: address, elements
    and type. `keep` is the tensor at that address. `finish` is the step that copies it to the
    caller's tensor, or None."""

    def __init__(self, messages, source, tag, place, keep, result, finish):
        super().__init__(messages, 'recv', result)
        self.wanted, self.tag, self.place, self.keep, self.finish = source, tag, place, keep, finish

    def wants(self, source, tag):
        return tag == self.tag and self.wanted in (None, source)


class Inbox:
    """Receives the messages of one rank. `envelope` is the work that receives the next envelope, or
    None."""

    def __init__(self, peer):
        self.peer, self.words, self.envelope = (
            peer,
            torch.empty(ENVELOPE_WORDS, dtype=torch.int64),
            None,
        )


class Unclaimed:
    """Contents, in `memory`, that came before a receive asked for them. `work` receives them."""

    def __init__(self, source, tag, kind, memory, work):
        self.source, self.tag, self.kind, self.memory, self.work = source, tag, kind, memory, work
