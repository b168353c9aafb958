# SPDX-License-Identifier: Apache-2.0
"""Tests ranks on two hosts, which tests/hosts/hosts.py makes: network namespaces, or only names of
hosts where there are none. Both ways give right sums, also with several devices in a process, and
a killed rank is named on the other host."""

import os
import subprocess
import sys

import ranks as r

HOSTS = r.ROOT / 'tests/hosts/hosts.py'
SUMS = """
    import fsccl_jax
    group = fsccl_jax.join(mesh)
    programs = [lambda x: group.all_reduce(x, group.token())[0]]
    if len(jax.local_devices()) == 1:
        programs.append(lambda x: lax.psum(x, "ranks"))
    x = split(np.ones(mesh.size << 15, np.float32))
    for program in programs:
        for shard in shard_map(program)(x).addressable_shards:
            assert np.all(shard.data == mesh.size), shard
    print("right", mesh.size)
"""


def jobs():
    """Returns what Job needs for four ranks, two on each host."""
    given = os.environ['TEST_HOSTS']
    if given.isdigit():
        hosts = [([], {'FSCCL_HOST_ID': f'host {host}'}) for host in range(int(given))]
        return {'places': [host for host in hosts for _ in range(2)]}
    hosts = [(['nsenter', f'--net={name}'], {}) for name in given.split(',')]
    places = [host for host in hosts for _ in range(2)]
    return {'places': places, 'address': '10.119.0.1:29517'}


def sums(**options):
    with r.Job(r.textwrap.dedent(SUMS), 4, **options, **jobs()) as job:
        statuses, outputs = job.wait()
    assert statuses == [0] * 4, outputs
    return outputs


def main():
    assert all('right 4' in output for output in sums())
    devices = "jax.config.update('jax_num_cpu_devices', 2)"
    assert all('right 8' in output for output in sums(use='', before=devices))
    text = r.SUM_UNTIL_ERROR.format(then=r.LAST_RANK_SLEEPS)
    with r.Job(text, 4, **jobs()) as job:
        for rank in range(4):
            job.wait_for(rank, 'ready')
        job.kill(3)
        statuses, outputs = job.wait(60, who=range(3))
    assert statuses == [3] * 3, outputs
    assert all('rank 3 of' in output and 'PEER_DEAD' in output for output in outputs), outputs


def test_ranks_of_two_hosts():
    command = [sys.executable, str(HOSTS), '--hosts', '2', '--', sys.executable, __file__]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


if __name__ == '__main__':
    main()
