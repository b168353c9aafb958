#!/usr/bin/env python3
"""Compares the forecast's communication between hosts with fsccl-perf step over a known network.

usage: hosts.py --hosts 2 --rate 1gbit -- own_network.py GBIT FSCCL-INFO FSCCL-PERF [RUNS [PER-HOST]]

tests/hosts/hosts.py makes hosts from network namespaces, whose links have this rate. The ranks (at
most PER-HOST on each host) run RUNS (5) times, and the median is compared with the forecast. A row
is not judged if half of its interquartile range is more than 5 % of the median. The test fails if
the forecast of a judged row is off by more than 10 %.
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
    """Returns how the hosts differ from this machine, which is measured: the namespaces share its
    cores, and are connected by a link. A frame of 1514 bytes carries 1448 bytes of TCP. The 24
    bytes of preamble and gap on a wire do not count here."""
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
