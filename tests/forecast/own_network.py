#!/usr/bin/env python3
"""Holds the forecast's communication between hosts against fsccl-perf step over a known network.

usage: hosts.py --hosts 2 --rate 1gbit -- own_network.py GBIT FSCCL-INFO FSCCL-PERF [RUNS]

tests/hosts/hosts.py makes hosts out of network name spaces, whose links have the rate; one and two
ranks on each run RUNS (5) times, and the median is held against the forecast. A row whose runs
differ by more than 5 % (half of the middle half) counts for nothing. Fails where a row that counts
is beyond 10 %.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'hosts'))
import own_runs
import ranks


def measured_s(perf, model, per_host, more):
    command = [perf, 'step', '--model', model, '--steps', '3', '--json', *more]
    results = ranks.ends(ranks.start(command, per_host))
    for status, _, errors in results:
        if status:
            sys.exit(f'fsccl-perf step ended with {status}: {errors}')
    return json.loads(results[0][1])['total_us'] / 1e6


def between(gbit, hosts, per_host):
    """Returns what differs from this machine, which is measured: the name spaces share its cores,
    and have a link. A frame of 1514 bytes on the wire carries 1448 of TCP, beside 24 of preamble
    and gap."""
    return {
        'machine': {
            'ranks_per_host': per_host,
            'cores_per_host': max(1, os.cpu_count() // hosts),
            'between': {'gb_per_s': gbit / 8 * 1448 / 1514},
        }
    }


def main():
    gbit, info, perf = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    count, worse = len(ranks.hosts()), 0
    with tempfile.TemporaryDirectory() as folder:
        model, link = pathlib.Path(folder) / 'model.json', pathlib.Path(folder) / 'link.json'
        for shape in ((512, 6, 4000), (1024, 3, 2000)):
            model.write_text(json.dumps(own_runs.model(*shape)), encoding='utf-8')
            for per_host in (1, 2):
                link.write_text(json.dumps(between(gbit, count, per_host)), encoding='utf-8')
                for more in (('--prefetch', '0'), ('--prefetch', '1'), ('--keep',)):
                    kept = more == ('--keep',)
                    times = [
                        measured_s(perf, model, per_host, ('--keep', 'always') if kept else more)
                        for _ in range(runs)
                    ]
                    answer = own_runs.ask(
                        info,
                        'forecast',
                        model,
                        '--machine',
                        'here',
                        '--config',
                        link,
                        '--ranks',
                        count * per_host,
                        '--sequence',
                        '1',
                        '--json',
                        *(('--keep', '64G') if kept else more),
                    )
                    name = f'{gbit:g} Gbit/s, {count} x {per_host} ranks, width {shape[0]}'
                    worse += own_runs.report(name, more, times, [answer['step']['communication_s']])
    sys.exit(f'{worse} rows beyond 10 %' if worse else 0)


if __name__ == '__main__':
    main()
