"""Tests that the secret of a job is in nothing that a run prints or leaves behind: messages of all
levels, recordings, metrics, errors, and arguments and environments of its processes. It is tested
with a secret in a file, and with the one in a unique id.
usage: secret_test.py PERF TRACE LIBRARY"""

import base64
import hashlib
import hmac
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

from program import expect

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'perf/failures'))
from ranks import free_port

perf, trace, library = map(os.path.abspath, sys.argv[1:])
SECRET = base64.b64encode(os.urandom(32))
# The key that src/bootstrap/credentials.cpp derives from the secret.
KEY = hmac.new(SECRET, b'fsccl job secret file', hashlib.sha256).digest()


def forms(secret):
    raw = [secret, secret[:16], secret[16:32]]  # a half must not be found either
    return {
        form
        for one in raw
        for form in (
            one,
            one.hex().encode(),
            one.hex().upper().encode(),
            base64.b64encode(one).rstrip(b'='),
        )
    }


def found_in(data, secrets=(SECRET, KEY)):
    return any(form in data for secret in secrets for form in forms(secret))


def start(folder, rank, port, secret='secret', timeout_ms=60000):
    settings = {
        'RANK': rank,
        'WORLD_SIZE': 2,
        'LOCAL_RANK': 0,
        'LOCAL_WORLD_SIZE': 1,
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': port,
        'FSCCL_HOST_ID': f'host {rank}',
        'FSCCL_JOB_SECRET_FILE': folder / secret,
        'FSCCL_LOG_LEVEL': 'trace',
        'FSCCL_TRACE_DIR': folder / 'trace',
        'FSCCL_METRICS_FILE': folder / 'metrics-%r',
        'FSCCL_METRICS_MS': 100,
        'FSCCL_TIMEOUT_MS': timeout_ms,
    }
    command = [
        perf,
        'collectives',
        '--coll',
        'all_gather',
        '-b',
        '8',
        '-e',
        '1M',
        '-f',
        '4',
        '-n',
        '200',
        '--json',
    ]
    return subprocess.Popen(
        command,
        env={**os.environ, **{name: str(value) for name, value in settings.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def read_all(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file() and path.name != 'secret'
    }


def processes_of(parents):
    """Returns the given processes and those that they have started."""
    family = {process.pid for process in parents}
    for folder in pathlib.Path('/proc').iterdir():
        try:
            if (
                folder.name.isdigit()
                and int((folder / 'stat').read_text().rsplit(')', 1)[1].split()[1]) in family
            ):
                family.add(int(folder.name))
        except (OSError, IndexError):
            pass
    return family


def await_recorders(folder, ranks):
    """Waits for the recorders, or for the end of a rank."""
    while all(rank.poll() is None for rank in ranks) and not list((folder / 'trace').iterdir()):
        time.sleep(0.01)


def visible(process):
    try:
        return b''.join(
            pathlib.Path(f'/proc/{process}/{name}').read_bytes() for name in ('cmdline', 'environ')
        )
    except OSError:
        return b''


def plant(secrets):
    for secret in secrets:
        for form in forms(secret):
            expect(found_in(b'before ' + form + b' behind', secrets), 'what is planted is found')


def key_of(unique, maker):
    """Returns the key in a unique id, whose layout is that of src/bootstrap/unique_id.cpp: magic,
    version, number of the job, key, listener, host, process."""
    magic, version, key, process = struct.unpack('<4sH8x32s16x8xi', unique[:74])
    expect(
        (magic, version, process) == (b'FSID', 1, maker.pid),
        f'the id is of another form: {unique.hex()}',
    )
    return key


def by_unique_id():
    """Runs three ranks, one of which dies. Their program, unique_id_rank.py, makes all calls that
    write or print something."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ('trace', 'dump'):
            (folder / part).mkdir()
        settings = {
            'FSCCL_LOG_LEVEL': 'trace',
            'FSCCL_TRACE_DIR': folder / 'trace',
            'FSCCL_METRICS_MS': 100,
            'FSCCL_METRICS_FILE': folder / 'metrics-%p',
            'FSCCL_POOL_LOG': folder / 'log-%r',
        }
        environment = {**os.environ, **{key: str(value) for key, value in settings.items()}}
        script = [sys.executable, pathlib.Path(__file__).with_name('unique_id_rank.py'), library]

        def begin(*words, stderr=subprocess.STDOUT):
            return subprocess.Popen(
                [*script, *map(str, words)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

        maker = begin(stderr=subprocess.PIPE)
        unique = maker.stdout.read(256)
        secrets = (key_of(unique, maker),)
        plant(secrets)
        expect(found_in(unique, secrets), 'the id itself has it')
        ranks = [begin(rank, 3, folder) for rank in range(3)]
        for rank in ranks:
            rank.stdin.write(unique)
            rank.stdin.flush()
        await_recorders(folder, ranks)
        shown = [visible(process) for process in processes_of([maker, *ranks])]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        maker.stdin.close()
        said += [maker.stdout.read(), maker.stderr.read()]
        maker.wait(timeout=60)
        for rank in (0, 2):
            expect(
                ranks[rank].returncode == 0 and said[rank].endswith(b'shrunk\n'),
                said[rank].decode(errors='replace'),
            )
        left = read_all(folder)
        for kind in ('trace/', 'dump/', 'metrics-', 'pool-', 'log-'):
            expect(
                any(str(path).startswith(f'{folder}/{kind}') for path in left),
                f'{kind} was written: {sorted(left)}',
            )
        for word in ('hang', 'timeline'):
            said.append(
                subprocess.run(
                    [trace, word, folder / 'trace'],
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    check=False,
                ).stdout
            )
        left |= read_all(folder)
        for what, data in [*left.items(), *enumerate(shown), *enumerate(said)]:
            expect(not found_in(data, secrets), f'{what} has no secret')


def by_file():
    plant((SECRET, KEY))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'trace').mkdir()
        (folder / 'secret').touch(0o600)
        (folder / 'secret').write_bytes(SECRET + b'\n')
        (folder / 'other').touch(0o600)
        (folder / 'other').write_bytes(os.urandom(32))
        port = free_port()
        ranks = [start(folder, rank, port) for rank in range(2)]
        await_recorders(folder, ranks)
        shown = [visible(process) for process in processes_of(ranks)]
        expect(any(b'FSCCL_' in text for text in shown), 'the processes can be looked at')
        expect(not any(map(found_in, shown)), 'no process shows the secret')
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        expect(
            all(rank.returncode == 0 for rank in ranks), b'\n'.join(said).decode(errors='replace')
        )
        # A rank with another secret is refused, and the errors of both sides say why.
        port = free_port()
        ranks = [
            start(folder, rank, port, secret, 4000)
            for rank, secret in enumerate(('secret', 'other'))
        ]
        said += [rank.communicate(timeout=120)[0] for rank in ranks]
        expect(
            all(rank.returncode != 0 for rank in ranks), 'who knows another secret is not let in'
        )
        left = read_all(folder)
        said.append(
            subprocess.run(
                [trace, 'hang', folder / 'trace'],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            ).stdout
        )
        expect(
            any(path.parent.name == 'trace' for path in left)
            and any(path.name.startswith('metrics') for path in left),
            f'recorders and metrics were written: {sorted(left)}',
        )
        expect(b' info: ' in said[0], 'messages of all levels were written')
        for path, data in left.items():
            expect(not found_in(data), f'{path.name} has no secret')
        for words in said:
            expect(not found_in(words), 'what is said has no secret')


by_file()
by_unique_id()
