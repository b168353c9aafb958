"""What `fsccl-info transports` says. usage: info_transports_test.py PROGRAM"""
import json
import os
import subprocess
import sys

program = sys.argv[1]


def run(*arguments, status=0, **settings):
    environment = {name: value for name, value in os.environ.items() if name not in ('FSCCL_NETWORK', 'FSCCL_TRANSPORT')}
    done = subprocess.run([program, 'transports', *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**environment, **settings})
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stderr


listed = json.loads(run('--json'))
assert [set(entry) for entry in listed] == [{'name', 'available', 'why', 'preferred'}] * len(listed), listed
assert len({entry['name'] for entry in listed}) == len(listed) and listed[0]['name'] == 'shm', listed
for entry in listed:
    assert isinstance(entry['available'], bool), entry
    assert (entry['why'] == '') == entry['available'], entry
text = run()
assert all(entry['name'] in text for entry in listed), text


def preferred(**settings):
    """The one between hosts, and why."""
    found = [(entry['name'], entry['preferred']) for entry in json.loads(run('--json', **settings)) if entry['preferred']]
    assert len(found) == 1, found
    assert f'preferred between hosts: {found[0][1]}' in run(**settings), found
    return found[0]


name, why = preferred()
assert name in ('tcp', 'ucx') and 'RDMA' in why, (name, why)
assert preferred(FSCCL_NETWORK='ucx') == ('ucx', 'FSCCL_NETWORK=ucx asks for it')
assert preferred(FSCCL_TRANSPORT='tcp') == ('tcp', 'FSCCL_TRANSPORT=tcp asks for it')
assert 'FSCCL_NETWORK is "infiniband"; accepted: one of' in run(status=1, FSCCL_NETWORK='infiniband')
