"""Tests programs whose output cannot be written as usual: full disks, limits of file sizes, closed
streams, and paths that are not files.

usage: outputs_test.py FSCCL-INFO FSCCL-PERF FSCCL-TRACE
"""

import json
import os
import pathlib
import resource
import stat
import subprocess
import sys
import tempfile
import threading

from program import expect

info, perf, trace = sys.argv[1:]
SMALL = ('--ranks', '1', '-b', '8', '-e', '8', '-n', '1', '-w', '0')


def run(*command, **options):
    return subprocess.run(
        [str(word) for word in command],
        **{
            'stdout': subprocess.PIPE,
            'stderr': subprocess.PIPE,
            'text': True,
            'timeout': 120,
            'check': False,
            **options,
        },
    )


def limited(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def inputs(folder):
    """Makes recordings of a job, a trace of allocations, and a model."""
    recordings, allocations, model = (
        folder / 'recordings',
        folder / 'allocations.jsonl',
        folder / 'model.json',
    )
    model.write_text(
        json.dumps({'name': 'tiny', 'units': [{'name': 'root', 'params': [['w', [64, 64]]]}]}),
        encoding='utf-8',
    )
    recordings.mkdir()
    records = [
        {'op': 'meta', 'name': 'small'},
        {'op': 'alloc', 'id': 1, 'bytes': 4096, 'stream': 's', 'kind': 'param', 'key': 'a'},
        {'op': 'free', 'id': 1, 'stream': 's'},
        {'op': 'mark', 'what': 'step_end'},
    ]
    allocations.write_text(
        ''.join(json.dumps(record) + '\n' for record in records), encoding='utf-8'
    )
    done = run(perf, 'collectives', *SMALL, env={**os.environ, 'FSCCL_TRACE_DIR': str(recordings)})
    expect(done.returncode == 0, done)
    return recordings, allocations, model


def check_full_disk(recordings, allocations, model):
    """Each command reports that its output is lost, and fails."""
    commands = [
        (info, 'config'),
        (info, 'config', '--json'),
        (info, 'config', '--markdown'),
        (info, 'version'),
        (info, 'transports'),
        (info, 'topology'),
        (info, 'devices'),
        (info, '--help'),
        (perf, '--help'),
        (trace, '--help'),
        (trace, 'hang', '--help'),
        (trace, 'hang', recordings),
        (trace, 'hang', recordings, '--json'),
        (trace, 'timeline', recordings, '-o', '-'),
        (trace, 'timeline', recordings, '-o', recordings / 'page.html'),
        (perf, 'pool', '--no-peers', '--steps', '2', allocations),
        (perf, 'pool', '--no-peers', '--steps', '2', '--json', allocations),
        (perf, 'collectives', *SMALL),
        (perf, 'tune', '--ranks', '1', '-b', '1K', '-e', '1K', '--json'),
        (perf, 'step', '--ranks', '1', '--model', model, '--steps', '1'),
    ]
    for command in commands:
        with open('/dev/full', 'w', encoding='utf-8') as full:
            done = run(*command, stdout=full)
        expect(
            done.returncode != 0 and 'cannot be written' in done.stderr,
            f'{command} on a full disk: {done}',
        )
        done = run(*command, preexec_fn=lambda: os.close(1))
        expect(
            done.returncode > 0 and 'cannot be written' in done.stderr,
            f'{command} with a closed standard output: {done}',
        )


def device(folder, name, minor):
    """Returns a device like /dev/NAME. For a user who may replace the machine's device, it is one
    that the test makes, or None if the test cannot make one."""
    if os.geteuid() != 0:
        return pathlib.Path('/dev', name)
    try:
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        (folder / name).open('wb').close()
    except OSError:
        return None
    return folder / name


def check_places(folder, command, null, full):
    """Tests `command` with paths of all kinds. It writes a file at the path that is its last
    argument."""
    page, fifo, link = folder / 'page', folder / 'fifo', folder / 'link'
    expect(run(*command, page).returncode == 0, command)
    whole = page.read_bytes()
    expect(stat.S_IMODE(page.stat().st_mode) == 0o644, f'{command}: {page.stat()}')
    page.write_text('before', encoding='utf-8')
    link.symlink_to('page')
    expect(
        run(*command, link).returncode == 0
        and link.is_symlink()
        and page.read_bytes() != b'before',
        f'{command} through a link',
    )
    if null:
        expect(
            run(*command, null).returncode == 0 and stat.S_ISCHR(null.stat().st_mode),
            f'{command} to a device',
        )
    os.mkfifo(fifo)
    for path, words in (
        (folder, 'is a directory'),
        (fifo, 'start its reader first'),
        *([(full, 'No space left')] if full else []),
    ):
        done = run(*command, path)
        expect(done.returncode > 0 and words in done.stderr, f'{command} to {path}: {done}')
    read = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    while run(*command, fifo).returncode != 0:  # fails until the FIFO has a reader
        pass
    reader.join(60)
    expect(
        read and read[0][:8] == whole[:8] and stat.S_ISFIFO(fifo.stat().st_mode),
        f'{command} to a FIFO: {read}',
    )
    done = run(*command, page, preexec_fn=limited(16))
    expect(
        done.returncode > 0 and 'ulimit -f' in done.stderr,
        f'{command} with a limit of 16 bytes: {done}',
    )
    expect(
        page.read_bytes()[:8] == whole[:8] and len(page.read_bytes()) > 16,
        f'{command}: what was there stays',
    )
    page.unlink()
    run(*command, page, preexec_fn=lambda: os.close(1))
    expect(
        not page.exists() or page.read_bytes()[:8] == whole[:8],
        f'{command}: the page alone, with a closed standard output',
    )
    left = {path.name for path in folder.iterdir()} - {'page', 'fifo', 'link'}
    expect(not left, f'{command} leaves {left}')


def check_limit_of_the_standard_output(folder):
    with open(folder / 'output', 'wb') as output:
        done = run(info, 'config', stdout=output, preexec_fn=limited(1024))
    expect(
        done.returncode > 0 and 'ulimit -f' in done.stderr,
        f'the standard output beyond a limit: {done}',
    )


os.umask(0o022)
with tempfile.TemporaryDirectory() as temporary:
    base = pathlib.Path(temporary)
    recordings, *others = inputs(base)
    check_full_disk(recordings, *others)
    check_limit_of_the_standard_output(base)
    null, full = device(base, 'null', 3), device(base, 'full', 7)
    for number, command in enumerate(
        [
            (info, 'topology', '--svg'),
            (trace, 'timeline', recordings, '-o'),
            (perf, 'collectives', *SMALL, '--report'),
            (perf, 'tune', '--ranks', '1', '-b', '1K', '-e', '1K', '--coll', 'all_gather', '-o'),
        ]
    ):
        folder = base / str(number)
        folder.mkdir()
        check_places(folder, command, null, full)
