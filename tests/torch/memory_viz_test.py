"""Tests that PyTorch's own viewer of memory snapshots reads what fsccl_pool_snapshot() writes. The
viewer draws in a browser, with code that it loads from the network. The test covers everything
before that."""

import base64
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import pytest
from torch.cuda import _memory_viz

UNITS = ['root', 'layers.0', 'layers.1', 'layers.2']
KEPT = UNITS[1:]  # fsccl-perf does not keep the root, which is gathered once a step


@pytest.fixture(name='paths', scope='module')
def snapshot_paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp('snapshot')
    model = {
        'name': 'tiny',
        'units': [{'name': name, 'params': [['w', [40010, 64]], ['b', [96]]]} for name in UNITS],
    }
    (folder / 'model.json').write_text(json.dumps(model), encoding='utf-8')
    paths = folder / 'a.json', folder / 'a.pickle'
    subprocess.run(
        [
            os.environ['FSCCL_PERF'],
            'step',
            '--model',
            folder / 'model.json',
            '--ranks',
            '2',
            '--steps',
            '2',
            '--keep',
            'always',
            '--snapshot',
            paths[0],
            '--snapshot',
            paths[1],
        ],
        check=True,
        timeout=200,
        env={**os.environ, 'FSCCL_POOL_HISTORY': '100000', 'FSCCL_TIMEOUT_MS': '60000'},
    )
    return paths


@pytest.fixture(name='snapshot')
def loaded(paths):
    with paths[1].open('rb') as file:
        return pickle.load(file)


def viz(*arguments):
    done = subprocess.run(
        [sys.executable, '-m', 'torch.cuda._memory_viz', *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize('plot', [('trace_plot',), ('trace_plot', '-s'), ('segment_plot',)])
def test_plots_embed_the_snapshot(paths, snapshot, tmp_path, plot):
    viz(*plot, paths[1], '-o', tmp_path / 'page.html')
    page = (tmp_path / 'page.html').read_text(encoding='utf-8')
    embedded = base64.b64decode(re.search(r'"base64": "([^"]*)"', page)[1])
    assert pickle.loads(embedded) == snapshot


def test_stats_add_up(paths, snapshot):
    text = viz('stats', paths[1])  # the viewer itself asserts that blocks fill their segments
    reserved = sum(segment['total_size'] for segment in snapshot['segments'])
    assert f'total_reserved: {_memory_viz.Bytes(reserved)}' in text
    live = sum(use['live_bytes'] for use in snapshot['fsccl']['uses'])
    assert live > 0  # some units are kept
    assert sum(_memory_viz.calc_active(segment) for segment in snapshot['segments']) == live
    assert f'segments: {len(snapshot["segments"])}' in text


def test_trace_names_every_event(paths, snapshot):
    lines = viz('trace', paths[1]).splitlines()
    events = snapshot['device_traces'][0]
    assert f'{len(events)} entries' in lines
    for action, pattern in (
        ('alloc', r'^\w+ = \w+\[\d+:'),
        ('free_requested', r'^del \w+ # '),
        ('free_completed', r'^# free completed for \w+ '),
    ):
        assert (
            sum(bool(re.match(pattern, line)) for line in lines)
            == sum(event['action'] == action for event in events)
            > 0
        )


def test_flame_graphs_name_the_owners(snapshot):
    for draw in (_memory_viz.segments, _memory_viz.memory):
        lines = draw(snapshot, format_flamegraph=lambda text: text).splitlines()
        for unit in KEPT:
            assert any(
                f'unit {unit}, parameters' in line and 'active_allocated' in line for line in lines
            ), unit


def test_pairs_can_be_filtered(snapshot):
    left = _memory_viz.filter_alloc_free_pairs(snapshot)['device_traces'][0]
    kept = {event['user_metadata'] for event in left if event['action'] == 'alloc'}
    assert kept == {f'unit {unit}, parameters' for unit in KEPT}  # all else was given back


def test_the_viewer_can_go_back_in_time(snapshot):
    """Goes from the last state back to the first, event by event, as the viewer does to show
    segments."""
    segments = {segment['address']: segment for segment in snapshot['segments']}
    mapped = {address: segment['total_size'] for address, segment in segments.items()}
    live = {
        block['address']: block['size']
        for segment in segments.values()
        for block in segment['blocks']
        if block['state'] == 'active_allocated'
    }
    assert all(segment['device'] == 0 for segment in segments.values())
    for event in reversed(snapshot['device_traces'][0]):
        if event['action'] == 'alloc':
            assert live.pop(event['addr']) == event['size']
        elif event['action'] == 'free_completed':
            assert event['addr'] not in live
            live[event['addr']] = event['size']
        elif event['action'] == 'segment_map':
            start = max(address for address in mapped if address <= event['addr'])
            assert start + mapped[start] == event['addr'] + event['size']
            mapped[start] -= event['size']
    assert not live
    assert set(mapped.values()) == {0}


def test_json_is_the_same(paths, snapshot):
    with pathlib.Path(paths[0]).open(encoding='utf-8') as file:
        other = json.load(file)
    for one in (other, snapshot):
        del one['fsccl']['time_us']
    assert json.loads(json.dumps(snapshot)) == other
