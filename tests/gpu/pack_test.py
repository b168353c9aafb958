#!/usr/bin/env python3
"""Tests tools/pack_gpu on a small build that a compiler makes here, and the errors of tests/gpu/run
and perf/gpu/run about a folder that lacks something."""

import os
import subprocess

from commands_test import expect, machine, main, run

JAX = 'bindings/jax/libfsccl_jax.so'


def compiled(folder, target, text, *words):
    target.parent.mkdir(parents=True, exist_ok=True)
    source = folder / 'source.c'
    source.write_text(text, encoding='utf-8')
    subprocess.run(['cc', source, '-o', target, *words], check=True)


def made_build(folder):
    """Makes a build with two programs for a GPU and another program. One needs a library of the
    build, and one a library of the machine."""
    build = machine(folder)
    (build / 'libfsccl.so.0').unlink()
    compiled(
        folder,
        build / 'libfsccl.so.0',
        'int fsccl(void) { return 0; }',
        '-shared',
        '-fPIC',
        '-Wl,-soname,libfsccl.so.0',
    )
    own, others = build / 'tests/stand_in/cuda', folder / 'others'
    compiled(
        folder,
        own / 'libown.so',
        'int own(void) { return 0; }',
        '-shared',
        '-fPIC',
        '-Wl,-soname,libown.so',
    )
    compiled(
        folder,
        others / 'libother.so',
        'int other(void) { return 0; }',
        '-shared',
        '-fPIC',
        '-Wl,-soname,libother.so',
    )
    rpath = '-Wl,--enable-new-dtags,-rpath,$ORIGIN/../../..:$ORIGIN/../../stand_in/cuda'
    compiled(
        folder,
        build / 'tests/unit/kernels/device_kernels_test',
        'int own(void), fsccl(void); int main(void) { return own() + fsccl(); }',
        f'-L{own}',
        '-lown',
        build / 'libfsccl.so.0',
        rpath,
    )
    compiled(
        folder,
        build / 'perf/gpu/pool_gpu',
        'int other(void); int main(void) { return other(); }',
        f'-L{others}',
        '-lother',
        f'-Wl,-rpath,{others}',
    )
    compiled(folder, build / 'tests/unit/unit/stream_plan_test', 'int main(void) { return 0; }')
    compiled(
        folder,
        build / JAX,
        'int fsccl(void); int jax(void) { return fsccl(); }',
        '-shared',
        '-fPIC',
        build / 'libfsccl.so.0',
        '-Wl,-rpath,$ORIGIN/../..',
    )
    (build / 'source').write_text('', encoding='utf-8')
    names = [
        'perf/gpu/pool_gpu',
        'tests/unit/kernels/device_kernels_test',
        'tests/unit/unit/stream_plan_test',
    ]
    (build / 'build.ninja').write_text(
        '\n'.join(
            [
                'rule cpp_LINKER',
                '  command = touch $out',
                *(f'build {name}: cpp_LINKER source' for name in names),
                '',
            ]
        ),
        encoding='utf-8',
    )
    subprocess.run(['ninja', '-C', build], check=True, stdout=subprocess.DEVNULL)
    return build


def check_pack(folder):
    """A packed program runs on a machine without the build. If a program is out of date or lacks
    something, packing fails with its name."""
    build, packed = made_build(folder), folder / 'packed'
    status, lines = run('tools/pack_gpu', folder, build, packed)
    expect(
        status == 0 and '3 programs, 1 libraries of the build, 1 others' in lines[0],
        f'packed: {lines}',
    )
    expect(
        'without RMM' in lines[1] and str(build / 'rmm') in lines[1],
        f'how RMM comes there: {lines}',
    )
    build.rename(folder / 'away')
    (folder / 'others').rename(folder / 'others away')
    env = dict(os.environ, LD_LIBRARY_PATH=str(packed / 'lib'))
    for program in ('tests/unit/kernels/device_kernels_test', 'perf/gpu/pool_gpu'):
        done = subprocess.run(
            [packed / program], env=env, capture_output=True, text=True, check=False
        )
        expect(
            done.returncode == 0, f'{program} of the packed folder: {done.returncode} {done.stderr}'
        )
    expect((packed / JAX).is_file(), 'the library for XLA is packed')
    (packed / 'lib/libother.so').unlink()
    for command in ('tests/gpu/run', 'perf/gpu/run'):
        (packed / 'tests/stand_in/cuda/libown.so').unlink(missing_ok=True)
        status, lines = run(command, folder, '--build', packed, '--python', 'no-python')
        expect(
            status == 1
            and any(
                'libown.so => not found' in line or 'libother.so => not found' in line
                for line in lines
            )
            and 'tools/pack_gpu' in lines[-1],
            f'a program that cannot be loaded: {lines}',
        )
    (folder / 'away').rename(build)
    status, lines = run('tools/pack_gpu', folder, build, packed)  # libother.so was removed
    expect(
        status == 1 and lines[-1] == 'perf/gpu/pool_gpu: libother.so is not found',
        f'a library that is nowhere: {lines}',
    )
    (build / 'perf/gpu/pool_gpu').unlink()
    status, lines = run('tools/pack_gpu', folder, build, packed)
    expect(
        status == 1 and f'run `ninja -C {build}` first' in lines[-1],
        f'a build that is not up to date: {lines}',
    )


if __name__ == '__main__':
    main(check_pack)
