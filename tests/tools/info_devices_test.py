"""Checks `fsccl-info devices`: with the stand-in driver (its folder is in LD_LIBRARY_PATH), and
with none that can be loaded. usage: info_devices_test.py PROGRAM"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

program = sys.argv[1]


def run(*arguments, **variables):
    return subprocess.run(
        [program, 'devices', *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **variables},
    ).stdout


found = json.loads(run('--json'))
assert found['why'] == '' and [entry['device'] for entry in found['devices']] == [0, 1], found
assert found['devices'][1] == {
    'device': 1,
    'available': True,
    'why': '',
    'name': 'stand-in for a GPU',
    'memory_bytes': 1 << 30,
    'capability': '9.0',
    'multiprocessors': 4,
    'copy_engines': 2,
    'descriptors': True,
    'fabric': False,
    'values_64': True,
    'batches': True,
    'driver': '13.0',
}, found
text = run()
assert (
    'device 1: stand-in for a GPU' in text
    and '1.0 GiB' in text
    and '2 copy engines' in text
    and 'of this host\n' in text
), text
text = run(FSCCL_STAND_IN_ATTRIBUTES='128=1,122=0,40=7', FSCCL_STAND_IN_GPU_BYTES=str(3 << 29))
assert (
    'as fabric handles, of others' in text
    and 'of 32 bits' in text
    and '7 copy engines' in text
    and '1.5 GiB' in text
), text

found = json.loads(run('--json', FSCCL_STAND_IN_ATTRIBUTES='102=0'))
assert [entry['available'] for entry in found['devices']] == [False, False], found
assert 'virtual memory' in found['devices'][0]['why'], found
assert 'device 0: not available' in run(FSCCL_STAND_IN_ATTRIBUTES='102=0')

found = json.loads(run('--json', FSCCL_STAND_IN_GPUS='0'))
assert found['devices'] == [] and 'CUDA_ERROR_NO_DEVICE' in found['why'], found
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'libcuda.so.1').write_text('nothing')
    path = folder + ':' + os.environ['LD_LIBRARY_PATH']
    text = run(LD_LIBRARY_PATH=path)
    assert (
        "there is no GPU to use: NVIDIA's driver is not installed" in text
        and len(text.splitlines()) == 1
    ), text
