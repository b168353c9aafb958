"""Checks `fsccl-info transports`. usage: info_transports_test.py PROGRAM PLUGIN"""

import json
import os
import subprocess
import sys

program, plugin = sys.argv[1:]


def run(*arguments, status=0, **settings):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith('FSCCL_')
    }
    done = subprocess.run(
        [program, 'transports', *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**environment, **settings},
    )
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stderr


listed = json.loads(run('--json'))
assert [set(entry) for entry in listed] == [{'name', 'available', 'why', 'preferred'}] * len(
    listed
), listed
assert len({entry['name'] for entry in listed}) == len(listed) and listed[0]['name'] == 'shm', (
    listed
)
for entry in listed:
    assert isinstance(entry['available'], bool), entry
    assert (entry['why'] == '') == entry['available'], entry
for command in (
    'config',
    'config --json',
    'config --markdown',
    'transports',
    'version',
    'topology',
    'explain all_gather 4K',
):
    with open('/dev/full', 'w', encoding='utf-8') as full:
        full_disk = subprocess.run(
            [program, *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert full_disk.returncode == 1 and 'cannot be written' in full_disk.stderr, (
        command,
        full_disk,
    )
text = run()
assert all(entry['name'] in text for entry in listed), text


def preferred(**settings):
    """Returns the preferred transport between hosts, and the reason."""
    found = [
        (entry['name'], entry['preferred'])
        for entry in json.loads(run('--json', **settings))
        if entry['preferred']
    ]
    assert len(found) == 1, found
    assert f'preferred between hosts: {found[0][1]}' in run(**settings), found
    return found[0]


name, why = preferred()
assert name in ('tcp', 'ucx') and 'RDMA' in why, (name, why)
assert preferred(FSCCL_NETWORK='ucx') == ('ucx', 'FSCCL_NETWORK=ucx asks for it')
assert preferred(FSCCL_TRANSPORT='tcp') == ('tcp', 'FSCCL_TRANSPORT=tcp asks for it')

# A plug-in of another maker is listed by its own name, once it can be used.
none = next(entry for entry in listed if entry['name'] == 'plugin')
assert 'FSCCL_TRANSPORT_PLUGIN' in none['why'], none
assert preferred(FSCCL_TRANSPORT_PLUGIN=plugin) == ('memfd', 'FSCCL_TRANSPORT_PLUGIN names it')
assert preferred(FSCCL_TRANSPORT_PLUGIN=plugin, FSCCL_NETWORK='tcp') == (
    'tcp',
    'FSCCL_NETWORK=tcp asks for it',
)
assert preferred(FSCCL_TRANSPORT_PLUGIN=plugin, FSCCL_TRANSPORT='plugin') == (
    'memfd',
    'FSCCL_TRANSPORT=plugin asks for it',
)
names = [
    entry['name']
    for entry in json.loads(run('--json', FSCCL_TRANSPORT_PLUGIN=plugin))
    if entry['available']
]
assert 'memfd' in names and 'plugin' not in names, names
assert preferred(FSCCL_TRANSPORT_PLUGIN='libm.so.6') == (
    'plugin',
    'FSCCL_TRANSPORT_PLUGIN names it',
)
assert 'exports no fsccl_transport_plugin()' in run(FSCCL_TRANSPORT_PLUGIN='libm.so.6')

assert 'FSCCL_NETWORK is "infiniband"; accepted: one of' in run(
    status=1, FSCCL_NETWORK='infiniband'
)
