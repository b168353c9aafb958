"""Checks what `fsccl-trace` makes of the files of a run, and the two forms of a snapshot.
usage: trace_test.py TRACE PERF"""

import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

from page import page_of
from program import expect
from program import run as run_program

trace, perf = sys.argv[1:]
MODEL = {
    'name': 'tiny',
    'units': [{'name': 'root', 'params': [['embedding', [1001, 64]]]}]
    + [{'name': f'layers.{i}', 'params': [['w', [257, 96]], ['b', [96]]]} for i in range(4)],
}


def snapshots(folder, steps=3, history='100000'):
    """Returns the paths of one state of a pool, as JSON and as a pickle."""
    (folder / 'model.json').write_text(json.dumps(MODEL), encoding='utf-8')
    paths = folder / 'a.json', folder / 'a.pickle'
    run_program(
        perf,
        'step',
        '--model',
        folder / 'model.json',
        '--ranks',
        '2',
        '--steps',
        steps,
        '--snapshot',
        paths[0],
        '--snapshot',
        paths[1],
        env={**os.environ, 'FSCCL_TIMEOUT_MS': '60000', 'FSCCL_POOL_HISTORY': history},
    )
    return paths


def with_lists(value):
    if isinstance(value, dict):
        return {key: with_lists(item) for key, item in value.items()}
    return [with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def check_forms(folder):
    """The pickle has the same contents as the JSON, with the same types, except for the time at
    which each was written."""
    text, pickled = snapshots(folder, steps=40)
    one = json.loads(text.read_text(encoding='utf-8'))
    with pickled.open('rb') as file:
        other = pickle.load(file)
    expect(other['segments'][0]['segment_pool_id'] == (0, 0), 'a tuple, as PyTorch has it')
    for snapshot in (one, other):
        expect(snapshot['fsccl'].pop('time_us') > 1.7e15, 'the time since 1970')
    expect(with_lists(other) == one, 'both forms say the same')
    events = one['device_traces'][0]
    expect(len(events) > 1200, f'more events than one portion of a pickled list: {len(events)}')
    expect(
        set(events[1])
        == {'action', 'addr', 'size', 'stream', 'time_us', 'user_metadata', 'frames'},
        f'an event: {events[1]}',
    )
    names = {use['unit'] for use in one['fsccl']['uses']}
    expect(names == {unit['name'] for unit in MODEL['units']}, f'the owners: {names}')


def check_page(folder):
    text, pickled = snapshots(folder)
    said = run_program(trace, 'memory', text, '-o', folder / 'page.html')
    expect(said.strip() == str(folder / 'page.html'), f'the name of the page: {said}')
    page = (folder / 'page.html').read_text(encoding='utf-8')
    found = page_of(page)
    expect(
        found.count['figure'] == 3 and found.count['table'] == 2,
        f'what is on the page: {found.count}',
    )
    # There are two steps of 5 units. Each step has 9 slots of parameters, because the last unit
    # stays unsharded, and 5 of gradients.
    expect(
        found.count['title'] == 1 + 2 * (9 + 5), f'the slots of two steps: {found.count["title"]}'
    )
    for words in (
        'unit layers.3, gradients',
        'live bound',
        'clique bound',
        'rank 0 of 2',
        'the last 2 of 4 known steps',
    ):
        expect(words in page, f'{words} on the page')
    expect(run_program(trace, 'memory', text, '-o', '-') == page, 'the same to the standard output')
    run_program(trace, 'memory', text)
    expect((folder / 'a.json.html').read_text(encoding='utf-8') == page, 'beside the snapshot')
    for axis in ('time', 'events'):
        whole = run_program(trace, 'memory', text, '-o', '-', '--steps', '0', '--axis', axis)
        expect(page_of(whole).count['title'] == 1 + 4 * (9 + 5), f'all steps, by {axis}')
    text, _ = snapshots(folder, history='0')
    page = run_program(trace, 'memory', text, '-o', '-')
    expect('set FSCCL_POOL_HISTORY' in page, 'what to do for a history')
    expect('Nothing is in the pool now' in page, 'why there is no picture')
    expect('<figure' not in page, 'no empty charts without a history')

    for arguments, words in (
        ((pickled,), 'this is a pickle'),
        ((folder / 'none',), 'No such file'),
        ((folder / 'model.json',), 'fsccl_pool_snapshot()'),
        ((text, '-o', folder / 'missing' / 'page.html'), "missing/page.html' cannot be written"),
        ((text, '-o', text), 'would be replaced'),
        ((text, '--axis', 'depth'), 'depth'),
        ((), 'required'),
    ):
        expect(
            words in run_program(trace, 'memory', *arguments, status=None),
            f'{words} in the error of {arguments}',
        )
    expect(
        'memory' in run_program(trace, '--help')
        and 'FSCCL_POOL_HISTORY' in run_program(trace, 'memory', '--help'),
        'the help',
    )


def check_clock(folder):
    """fsccl-perf step does not measure the time in which it writes gradients. It writes them
    between two barriers, so that no rank writes while another one measures."""
    # A communicator keeps its last 64 operations that complete at once, so there must not be more.
    model = {**MODEL, 'units': MODEL['units'][:2]}
    (folder / 'model.json').write_text(json.dumps(model), encoding='utf-8')
    (folder / 'recordings').mkdir()
    environment = {**os.environ, 'FSCCL_TIMEOUT_MS': '60000'}
    environment['FSCCL_TRACE_DIR'] = str(folder / 'recordings')
    options = ('--ranks', '2', '--steps', '2', '--prefetch', '0')
    run_program(perf, 'step', '--model', folder / 'model.json', *options, env=environment)
    run_program(trace, 'timeline', folder, '--perfetto', '--last', '3', status=2)  # one of them
    said = run_program(trace, 'timeline', folder / 'recordings', '--perfetto', '-o', '-')
    spans = [event for event in json.loads(said)['traceEvents'] if event.get('ph') == 'X']
    spans = sorted((e for e in spans if e['pid'] == spans[0]['pid']), key=lambda e: e['ts'])
    names = [event['name'].split()[0] for event in spans]
    # A warm-up and two steps write the gradients of each unit once.
    least = 2 * 3 * len(model['units'])
    expect(names.count('barrier') >= least, f'{least} barriers: {names}')
    check_recordings(folder / 'recordings')


def check_recordings(folder):
    """A file that is no whole recording is named, and the others are used. No recording is
    replaced by a page."""
    whole = sorted(folder.glob('*.ring'))
    before = whole[0].read_bytes()
    said = run_program(trace, 'timeline', folder, '-o', whole[0], status=2)
    expect('would be replaced' in said and whole[0].read_bytes() == before, said)
    for length in (0, 100, len(before) // 2):
        (folder / 'cut.ring').write_bytes(before[:length])
        (folder / 'folder.ring').mkdir(exist_ok=True)
        done = subprocess.run([trace, 'hang', folder], capture_output=True, text=True, check=True)
        expect(
            'cut.ring' in done.stderr and 'folder.ring is not a regular file' in done.stderr,
            done.stderr,
        )
        expect('remove this file' in done.stderr and 'cut.ring' not in done.stdout, done.stdout)
    said = run_program(trace, 'timeline', folder, '-o', folder / 'cut.ring', status=2)
    expect('would be replaced' in said, said)
    (folder / 'cut.ring').unlink()
    whole[1].rename(folder / 'away')
    said = run_program(trace, 'hang', folder)
    expect('missing: 1.' in said, said)
    (folder / 'away').rename(whole[1])
    for last in ('0', 'nan', '-1'):
        said = run_program(trace, 'timeline', folder, '--last', last, status=2)
        expect('no number above 0' in said, said)
    for path in whole:
        path.unlink()
    said = run_program(trace, 'hang', folder, status=1)
    expect('none of the files' in said, said)


with tempfile.TemporaryDirectory() as temporary:
    check_clock(pathlib.Path(temporary))
    check_forms(pathlib.Path(temporary))
    check_page(pathlib.Path(temporary))
