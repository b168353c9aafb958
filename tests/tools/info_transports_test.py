"""What `fsccl-info transports` says. usage: info_transports_test.py PROGRAM"""
import json
import subprocess
import sys

program = sys.argv[1]


def run(*arguments):
    return subprocess.run([program, 'transports', *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


listed = json.loads(run('--json'))
assert [set(entry) for entry in listed] == [{'name', 'available', 'why'}] * len(listed), listed
assert len({entry['name'] for entry in listed}) == len(listed) and listed[0]['name'] == 'shm', listed
for entry in listed:
    assert isinstance(entry['available'], bool), entry
    assert (entry['why'] == '') == entry['available'], entry
text = run()
assert all(entry['name'] in text for entry in listed), text
