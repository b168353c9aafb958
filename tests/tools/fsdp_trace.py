"""Makes traces of the allocations of sharded training, in the form of perf/pool/trace.h. They have
three streams, as PyTorch's FSDP uses them. In the dialect `flat` each unit has one flat parameter.
In the dialect `copies` parameters are copied out of the gathered buffer.
"""

import json


class Trace:
    def __init__(self, name):
        self.records, self.id, self.event_id = [{'op': 'meta', 'name': name}], 0, 0

    def alloc(self, size, stream, kind, key):
        self.id += 1
        self.records.append(
            {
                'op': 'alloc',
                'id': self.id,
                'bytes': size,
                'stream': stream,
                'kind': kind,
                'key': key,
            }
        )
        self.use(self.id, stream)
        return self.id

    def use(self, block, stream):
        self.records.append({'op': 'use', 'id': block, 'stream': stream})

    def free(self, block, stream):
        self.records.append({'op': 'free', 'id': block, 'stream': stream})

    def event(self, stream):
        self.event_id += 1
        self.records.append({'op': 'event', 'id': self.event_id, 'stream': stream})
        return self.event_id

    def wait(self, stream, event):
        self.records.append({'op': 'wait', 'stream': stream, 'event': event})

    def mark(self, what):
        self.records.append({'op': 'mark', 'what': what})

    def text(self):
        return ''.join(json.dumps(record) + '\n' for record in self.records)


class Step:
    """One step over units. A unit is a list of the bytes of its parameters, and `prefetch` units
    are gathered ahead."""

    def __init__(self, trace, units, dialect, prefetch):
        self.trace, self.units, self.dialect, self.prefetch = trace, units, dialect, prefetch
        self.gathered, self.params, self.reducing = {}, {}, []

    def gather(self, unit):
        if unit in self.gathered or unit in self.params:
            return
        self.trace.wait('ag', self.trace.event('compute'))
        block = self.trace.alloc(sum(self.units[unit]), 'ag', 'ag_out', f'{unit}/ag')
        self.gathered[unit] = (block, self.trace.event('ag'))

    def use(self, unit):
        self.gather(unit)
        if unit in self.params:
            return
        block, ready = self.gathered[unit]
        self.trace.wait('compute', ready)
        if self.dialect == 'flat':
            return
        self.params[unit] = [
            self.trace.alloc(size, 'compute', 'param', f'{unit}/p{i}')
            for i, size in enumerate(self.units[unit])
        ]
        self.trace.use(block, 'compute')
        self.trace.wait('ag', self.trace.event('compute'))
        self.trace.free(block, 'ag')
        del self.gathered[unit]

    def drop(self, unit):
        blocks = self.params.pop(unit) if unit in self.params else [self.gathered.pop(unit)[0]]
        for block in blocks:
            self.trace.free(block, 'compute')

    def compute(self, unit):
        for block in self.params[unit] if unit in self.params else [self.gathered[unit][0]]:
            self.trace.use(block, 'compute')

    def forward(self, order, keep_last=True):
        for place, unit in enumerate(order):
            self.use(unit)
            for ahead in order[place + 1 : place + 1 + self.prefetch]:
                self.gather(ahead)
            self.compute(unit)
            if not keep_last or unit != order[-1]:
                self.drop(unit)

    def backward(self, order):
        order = order[::-1]
        for place, unit in enumerate(order):
            self.use(unit)
            for ahead in order[place + 1 : place + 1 + self.prefetch]:
                self.gather(ahead)
            self.compute(unit)
            self.finish(1)
            gradient = self.trace.alloc(sum(self.units[unit]), 'compute', 'grad', f'{unit}/grad')
            self.drop(unit)
            self.trace.wait('rs', self.trace.event('compute'))
            self.trace.use(gradient, 'rs')
            self.reducing.append((gradient, self.trace.event('rs')))
        self.finish(0)
        self.trace.wait('ag', self.trace.event('compute'))
        self.trace.wait('rs', self.trace.event('compute'))

    def finish(self, remaining):
        while len(self.reducing) > remaining:
            block, done = self.reducing.pop(0)
            self.trace.wait('compute', done)
            self.trace.free(block, 'rs')


def make(name, units, dialect='flat', prefetch=1, orders=(None, None, None), evaluate_after=()):
    """Returns a trace with a training step for each of `orders` (None: all units in order), and an
    evaluation after some of them."""
    trace = Trace(name)
    for number, order in enumerate(orders):
        order = list(range(len(units))) if order is None else order
        step = Step(trace, units, dialect, prefetch)
        step.forward(order)
        step.backward(order)
        trace.mark('step_end')
        if number in evaluate_after:
            Step(trace, units, dialect, prefetch).forward(order, keep_last=False)
            trace.wait('ag', trace.event('compute'))
            trace.mark('eval_end')
    return trace.text()
