"""Checks what `fsccl-info layout` prints and refuses. usage: info_layout_test.py PROGRAM"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

from program import expect
from program import run as run_program

program = sys.argv[1]


def run(*arguments, status=0):
    return run_program(program, 'layout', *arguments, status=status, timeout=60)


def check_json():
    rows = json.loads(run('Llama-3-8B', '--world', '64,4096', '--block', '32x32,element', '--json'))
    expect(
        [(row['unit'], row['units'], row['block'], row['world']) for row in rows]
        == [
            (unit, units, block, world)
            for unit, units in (('root', 1), ('layers.0', 32))
            for block in ('32x32', 'element')
            for world in (64, 4096)
        ],
        f'the rows: {rows}',
    )
    for row in rows:
        expect(
            {'unit', 'world', 'padding', 'bound', 'plan_us', 'block', 'elements'} <= set(row),
            f'the keys of {row}',
        )
        expect(
            0 <= row['bound'] <= row['padding'] <= row['bound'] + 0.01,
            f'padding against its bound in {row}',
        )
        expect(
            abs(row['world'] * row['largest_shard'] / row['elements'] - 1 - row['padding']) < 1e-12,
            f'the fraction in {row}',
        )
        expect(row['plan_us'] > 0, f'a time in {row}')
    expect(rows[-1]['elements'] == 218112000, 'the elements of a layer')


def check_models():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'mine.json'
        path.write_text(
            '{"name": "mine", "units": [{"name": "only", "params": [["w", [32, 32]]]}]}',
            encoding='utf-8',
        )
        (row,) = json.loads(run(str(path), '--world', '4', '--block', '32x32', '--json'))
        expect(
            (row['padding'], row['bound'], row['largest_shard']) == (3, 3, 1024),
            f'one block on four ranks: {row}',
        )
        (row,) = json.loads(run(str(path), '--world', '5', '--layout', 'per_param', '--json'))
        expect(
            (row['largest_shard'], row['padding']) == (7 * 32, 35 / 32 - 1),
            f'seven rows of 32 on five ranks: {row}',
        )
        path.write_text('{"name": "mine", "units": []}', encoding='utf-8')
        expect('units' in run(str(path), status=1), 'a broken file names the place')
    same = [
        run(name, '--world', '8', '--json').count('largest_shard')
        for name in ('llama-3-70b', 'LLAMA-3.1-70B')
    ]
    expect(same[0] == same[1] == 2, 'names in any case, and releases with the same shapes')


def check_table_and_errors():
    table = run('gpt-oss-120b', '--world', '64')
    expect('layers.0.experts' in table and '3186155520' in table and 'bound' in table, table)
    for arguments, word in (
        (('none-such',), 'llama-3-8b'),
        (('llama-3-8b', '--block', '32x'), '32x32'),
        (('llama-3-8b', '--block', '0x4'), '0x4'),
        (('llama-3-8b', '--world', '0'), '0 is no whole number'),
        (('llama-3-8b', '--world', '8,1048577'), '1048577 is no whole number'),
        (('llama-3-8b', '--world', 'many'), 'many'),
        (('llama-3-8b', '--layout', 'round'), 'ragged'),
        ((), 'model'),
    ):
        expect(
            word in run(*arguments, status=2),
            f'{arguments}: the error names {word}: {run(*arguments, status=2)}',
        )


def check_missing_data():
    """Without the folders of the models the error says where they were looked for."""
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder) / 'bin/fsccl-info'
        alone.parent.mkdir()
        shutil.copy(program, alone)
        libraries = str(pathlib.Path(program).resolve().parents[1])
        for command, kind in (
            (('layout', 'llama-3-8b'), 'models'),
            (('forecast', 'llama-3-8b'), 'models'),
            (('forecast', './any.json', '--machine', 'dgx-h100'), 'machines'),
        ):
            text = run_program(
                alone, *command, status=2, env={**os.environ, 'LD_LIBRARY_PATH': libraries}
            )
            expect(f'none (looked in {folder}/perf/{kind}, ' in text, text)


check_json()
check_models()
check_table_and_errors()
check_missing_data()
