#!/usr/bin/env python3
"""Holds the forecast's communication between hosts against fsccl-perf step over a known network.

usage: hosts.py --hosts 2 --rate 1gbit -- own_network.py GBIT FSCCL-INFO FSCCL-PERF [RUNS [PER-HOST]]

tests/hosts/hosts.py makes hosts out of network name spaces, whose links have the rate; the ranks on
each (PER-HOST: only so many) run RUNS (5) times, and the median is held against the forecast. A row whose runs
differ by more than 5 % (half of the middle half) is not judged. Fails where a row that is judged
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
    wanted = (
        [int(sys.argv[5])] if len(sys.argv) > 5 else own_runs.POINTS['between']['ranks_per_host']
    )
    count, worse = len(ranks.hosts()), 0
    own_runs.header()
    with tempfile.TemporaryDirectory() as folder:
        model, link = pathlib.Path(folder) / 'model.json', pathlib.Path(folder) / 'link.json'
        for shape in own_runs.POINTS['between']['models']:
            model.write_text(json.dumps(own_runs.model(*shape)), encoding='utf-8')
            for per_host in wanted:
                link.write_text(json.dumps(between(gbit, count, per_host)), encoding='utf-8')
                for step in own_runs.POINTS['steps']:
                    times, said = [], []
                    for _ in range(runs):
                        times.append(measured_s(perf, model, per_host, own_runs.of_perf(step)))
                        said.append(
                            own_runs.forecast_s(
                                info, model, count * per_host, step, '--config', link
                            )
                        )
                    name = f'width {shape[0]}, {gbit:g} Gbit/s'
                    worse += own_runs.report(name, f'{count} x {per_host}', step, times, said)
    sys.exit(f'{worse} rows beyond 10 %' if worse else 0)


if __name__ == '__main__':
    main()
