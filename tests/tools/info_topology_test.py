"""Checks what `fsccl-info topology` prints, writes and refuses. usage: info_topology_test.py
PROGRAM FOLDER-OF-TOPOLOGIES"""

import json
import os
import pathlib
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from program import expect
from program import run as run_program

program, samples = sys.argv[1], pathlib.Path(sys.argv[2])


def run(*arguments, status=0):
    return run_program(program, 'topology', *arguments, status=status, timeout=60)


def cores(node):
    return (node.get('kind') == 'core') + sum(cores(child) for child in node.get('children', []))


with tempfile.TemporaryDirectory() as folder:
    dump, picture = pathlib.Path(folder) / 'machine.json', pathlib.Path(folder) / 'machine.svg'

    # The program prints the tree of this machine, its JSON, which can be read again, and a picture.
    machine = run('--json', '--svg', picture)
    (host,) = json.loads(machine)['hosts']
    expect(1 <= cores(host) <= os.cpu_count(), f'the cores of {machine}')
    expect(ElementTree.parse(picture).getroot().tag.endswith('svg'), 'a picture')
    expect('rank 0' not in picture.read_text(encoding='utf-8'), 'a picture without ranks')
    run('--svg', picture, '--ranks', '1')
    expect('rank 0' in picture.read_text(encoding='utf-8'), 'a picture with ranks')
    dump.write_text(machine, encoding='utf-8')
    expect(run('--file', dump, '--json') == machine, 'what is written is read')
    expect(
        run('--file', dump) == run() and 'between' in run(),
        'the tree of the file is that of the machine',
    )

    # The samples are machines of all kinds.
    for sample in sorted(samples.glob('*.*')):
        if sample.suffix != '.md':
            expect('core' in run('--file', sample, '--svg', picture), f'the tree of {sample}')
            ElementTree.parse(picture)
    cluster = samples / 'rails_two_tiers.json'
    expect(
        'node0 (and 15 alike: node1 .. node15)' in run('--file', cluster), 'hosts that are alike'
    )
    way = run('--file', cluster, '--between', 'node3/gpu2', 'node7/gpu2')
    expect('network' in way and 'node3/mlx5_2 - rail2 - node7/mlx5_2' in way, way)

    # hwloc's XML is not trusted. A file that is not complete is an error, and never a crash.
    for sample in sorted(samples.glob('*.xml')):
        whole, cut = sample.read_text(encoding='utf-8'), pathlib.Path(folder) / 'cut.xml'
        for text in (
            whole.replace(' complete_cpuset="', ' other="'),
            whole.replace(' cpuset="', ' other="', 1),
            whole[: len(whole) // 2],
            whole.replace('type="PU"', 'type="Unit"'),
            '<topology/>',
            '<',
        ):
            cut.write_text(text, encoding='utf-8')
            expect(
                'cut.xml, line' in run('--file', cut, status=1), f'{sample} that is not complete'
            )

    # The error names what is wrong.
    bad = pathlib.Path(folder) / 'bad.json'
    bad.write_text(
        '{"fsccl_topology": 1, "hosts": [{"name": "a", "children": [{"kind": "cpu", "name": '
        '"x"}]}]}',
        encoding='utf-8',
    )
    for arguments, words in (
        (('--file', bad), 'hosts[0].children[0].kind'),
        (('--file', folder + '/none'), 'none'),
        (('--between', 'nobody', 'nowhere'), '"nobody"'),
        (('--svg', '/nonexistent/a.svg'), '/nonexistent/a.svg'),
    ):
        expect(words in run(*arguments, status=1), f'{arguments}: {words}')
