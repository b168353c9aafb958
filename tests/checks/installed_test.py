#!/usr/bin/env python3
"""The installed tree serves a program that knows nothing of the sources: examples/hello.c is compiled with what pkg-config
says, and runs; the installed programs find their library.

usage: installed_test.py ROOT BUILD MESON
"""
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode != 0:
        sys.exit(f'{" ".join(str(word) for word in command)}: exit status {result.returncode}\n{result.stdout}')
    return result.stdout


def main(root, build, meson):
    with tempfile.TemporaryDirectory() as folder:
        run(*meson.split(), 'install', '-C', build, '--no-rebuild', '--destdir', folder)
        config = next(pathlib.Path(folder).rglob('fsccl.pc'))
        installed = config.parents[2] if config.parents[1].name == 'lib' else config.parents[3]
        prefix = pathlib.Path(folder) / 'prefix'  # a name without blanks, wherever the tree is
        prefix.symlink_to(installed)
        environment = {name: value for name, value in os.environ.items() if name != 'LD_LIBRARY_PATH'}
        environment['PKG_CONFIG_PATH'] = str(config.parent)
        flags = run('pkg-config', '--define-variable=prefix=' + str(prefix), '--cflags', '--libs', 'fsccl', env=environment).split()
        library = prefix / config.relative_to(installed).parents[1] / 'libfsccl.so'
        program = pathlib.Path(folder) / 'hello'
        sources = [root / 'examples/hello.c', root / 'examples/local_ranks.c']
        compiler = os.environ.get('CC', 'cc')
        run(compiler, '-std=c99', '-Wall', '-Werror', *sources, '-o', program, *flags, f'-Wl,-rpath,{library.parent}',
            env=environment)
        output = run(program, env=environment)
        if len(output.splitlines()) != 2:
            sys.exit(f'hello printed:\n{output}')
        for name in ('fsccl-info', 'fsccl-perf'):
            run(prefix / 'bin' / name, '--help', env=environment)


if __name__ == '__main__':
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3])
