"""The secret of a job is in nothing that a run says or leaves: messages of all levels, recorders, metrics, what a failure prints,
arguments and environments of its processes. usage: secret_test.py PERF TRACE"""
import base64
import hashlib
import hmac
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from program import expect

perf, trace = sys.argv[1:]
SECRET = base64.b64encode(os.urandom(32))
# What src/bootstrap/credentials.cpp makes of it.
KEY = hmac.new(SECRET, b'fsccl job secret file', hashlib.sha256).digest()


def forms(secret):
    raw = [secret, secret[:16], secret[16:32]]  # a part is too much, too
    return {form for one in raw for form in
            (one, one.hex().encode(), one.hex().upper().encode(), base64.b64encode(one).rstrip(b'='))}


def found_in(data):
    return any(form in data for secret in (SECRET, KEY) for form in forms(secret))


def start(folder, rank, port, secret='secret', timeout_ms=60000):
    settings = {'RANK': rank, 'WORLD_SIZE': 2, 'LOCAL_RANK': 0, 'LOCAL_WORLD_SIZE': 1,
                'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port,
                'FSCCL_HOST_ID': f'host {rank}', 'FSCCL_JOB_SECRET_FILE': folder / secret, 'FSCCL_LOG_LEVEL': 'trace',
                'FSCCL_TRACE_DIR': folder / 'trace', 'FSCCL_METRICS_FILE': folder / 'metrics-%r', 'FSCCL_METRICS_MS': 100,
                'FSCCL_TIMEOUT_MS': timeout_ms}
    command = [perf, 'collectives', '--coll', 'all_gather', '-b', '8', '-e', '1M', '-f', '4', '-n', '200', '--json']
    return subprocess.Popen(command, env={**os.environ, **{name: str(value) for name, value in settings.items()}},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def processes_of(parents):
    """They and what they have started."""
    family = {process.pid for process in parents}
    for folder in pathlib.Path('/proc').iterdir():
        try:
            if folder.name.isdigit() and int((folder / 'stat').read_text().rsplit(')', 1)[1].split()[1]) in family:
                family.add(int(folder.name))
        except (OSError, IndexError):
            pass
    return family


def visible(process):
    try:
        return b''.join(pathlib.Path(f'/proc/{process}/{name}').read_bytes() for name in ('cmdline', 'environ'))
    except OSError:
        return b''


def main():
    for secret in (SECRET, KEY):
        for form in forms(secret):
            expect(found_in(b'before ' + form + b' behind'), 'what is planted is found')
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'trace').mkdir()
        (folder / 'secret').touch(0o600)
        (folder / 'secret').write_bytes(SECRET + b'\n')
        (folder / 'other').touch(0o600)
        (folder / 'other').write_bytes(os.urandom(32))
        port = 15000 + os.getpid() % 5000
        ranks = [start(folder, rank, port) for rank in range(2)]
        while all(rank.poll() is None for rank in ranks) and not list((folder / 'trace').iterdir()):
            time.sleep(0.01)
        expect(not any(found_in(visible(process)) for process in processes_of(ranks)), 'no process shows the secret')
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        expect(all(rank.returncode == 0 for rank in ranks), b'\n'.join(said).decode(errors='replace'))
        # One that knows another secret is refused, and both say why.
        ranks = [start(folder, rank, port + 1, secret, 4000) for rank, secret in enumerate(('secret', 'other'))]
        said += [rank.communicate(timeout=120)[0] for rank in ranks]
        expect(all(rank.returncode != 0 for rank in ranks), 'who knows another secret is not let in')
        left = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.name != 'secret'}
        said.append(subprocess.run([trace, 'hang', folder / 'trace'],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout)
        expect(any(path.parent.name == 'trace' for path in left) and any(path.name.startswith('metrics') for path in left),
               f'recorders and metrics were written: {sorted(left)}')
        expect(b' info: ' in said[0], 'messages of all levels were written')
        for path, data in left.items():
            expect(not found_in(data), f'{path.name} has no secret')
        for words in said:
            expect(not found_in(words), 'what is said has no secret')


main()
