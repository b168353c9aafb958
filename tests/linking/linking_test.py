#!/usr/bin/env python3
"""Builds a program that uses nothing of the sources (outside/) with the library, in each way that
users have, and runs it.

usage: linking_test.py WAY ROOT BUILD FOLDER MESON

WAY is one of
  pkg-config       builds the program and examples/hello.c with the tree that `meson install`
                   makes and the flags of fsccl.pc, and runs them
  cmake            uses the same tree, moved elsewhere, with find_package(fsccl)
  cmake-links      finds a tree without contents whose lib is a link, as /lib is to /usr/lib
  subproject       uses the sources as a subproject of Meson, which takes minutes
  subproject-setup only configures that: no test and no program of the sources is to be built
FOLDER is made and kept, because the compiler's cache knows its path.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

EXPECTED = 'fsccl 1: 41\n'  # 1: header and library have one version; 41: a sum over one rank


def run(*command, **options):
    # pkg-config puts a backslash before each byte of a letter that is not ASCII.
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='surrogateescape',
        **options,
    )
    if result.returncode != 0:
        sys.exit(
            f'{" ".join(str(word) for word in command)}: exit status '
            f'{result.returncode}\n{result.stdout}'
        )
    return result.stdout


def expect(condition, text):
    if not condition:
        sys.exit(text)


class Linking:
    def __init__(self, root, build, folder, meson):
        self.root, self.build, self.folder, self.meson = root, build, folder, [meson]
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ('LD_LIBRARY_PATH', 'DESTDIR', 'CMAKE_PREFIX_PATH')
        }
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def install(self):
        """Returns the installed tree, whose path is not the prefix for which it was configured."""
        staged = self.folder / 'staged'
        run(*self.meson, 'install', '-C', self.build, '--no-rebuild', '--destdir', staged)
        config = next(staged.rglob('fsccl.pc'))
        installed = config.parents[2] if config.parents[1].name == 'lib' else config.parents[3]
        prefix = self.folder / 'prefix'
        shutil.move(installed, prefix)
        library = prefix / config.relative_to(installed).parents[1]
        header = prefix / 'include/fsccl'
        for path in (
            library / 'libfsccl.so',
            library / 'libfsccl.so.0',
            header / 'fsccl.h',
            header / 'transport.h',
            header / 'allocator.h',
            header / 'codec.h',
            header / 'insight.h',
            header / 'redistribute.h',
            header / 'publish.h',
        ):
            expect(path.exists(), f'{path} was not installed')
        expect(
            '[libfsccl.so.0]' in run('readelf', '-d', library / 'libfsccl.so'),
            'libfsccl.so has no soname libfsccl.so.0',
        )
        return prefix, library

    def check(self, program):
        output = run(program, env=self.environment)
        expect(output == EXPECTED, f'{program} printed {output!r}, not {EXPECTED!r}')

    def pkg_config(self):
        prefix, library = self.install()
        self.environment['PKG_CONFIG_PATH'] = str(library / 'pkgconfig')
        escaped = str(prefix).replace(' ', '\\ ')
        words = run(
            'pkg-config',
            f'--define-variable=prefix={escaped}',
            '--cflags',
            '--libs',
            'fsccl',
            env=self.environment,
        )
        compiler = os.environ.get('CC', 'cc').split()
        for name, sources in {
            'outside': [self.root / 'tests/linking/outside/outside.c'],
            'hello': [self.root / 'examples/hello.c', self.root / 'examples/local_ranks.c'],
        }.items():
            run(
                *compiler,
                '-std=c99',
                '-Wall',
                '-Werror',
                *sources,
                '-o',
                self.folder / name,
                *shlex.split(words),
                f'-Wl,-rpath,{library}',
                env=self.environment,
            )
        self.check(self.folder / 'outside')
        output = run(self.folder / 'hello', env=self.environment)
        expect(len(output.splitlines()) == 2, f'hello printed:\n{output}')
        for name in ('fsccl-info', 'fsccl-perf', 'fsccl-trace'):
            run(prefix / 'bin' / name, '--help', env=self.environment)

    def cmake(self):
        prefix, _ = self.install()
        source = self.root / 'tests/linking/outside'
        build = self.folder / 'build'
        run(
            'cmake',
            '-S',
            source,
            '-B',
            build,
            f'-DCMAKE_PREFIX_PATH={prefix}',
            env=self.environment,
        )
        run('cmake', '--build', build, env=self.environment)
        self.check(build / 'outside')
        # The version file must refuse these.
        for wanted in ('0.2', '1.0', '0.1.99'):
            trial = self.folder / f'refused-{wanted}'
            trial.mkdir()
            (trial / 'CMakeLists.txt').write_text(
                'cmake_minimum_required(VERSION 3.18)\nproject(refused C)\n'
                f'find_package(fsccl {wanted} CONFIG REQUIRED)\n'
            )
            result = subprocess.run(
                ['cmake', '-S', trial, '-B', trial / 'build', f'-DCMAKE_PREFIX_PATH={prefix}'],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=self.environment,
            )
            expect(
                result.returncode != 0 and 'fsccl' in result.stdout,
                f'fsccl {wanted} was found:\n{result.stdout}',
            )

    def cmake_links(self):
        config = pathlib.Path(self.build, 'fsccl-config.cmake').read_text(encoding='utf-8')
        libdir = re.search(r'_fsccl_libdir "(lib.*)"', config)[1]
        system, trial = self.folder / 'system', self.folder / 'trial'
        package = system / 'usr' / libdir / 'cmake/fsccl'
        header = system / 'usr/include/fsccl/fsccl.h'
        for folder in (package, header.parent, trial):
            folder.mkdir(parents=True)
        (package / 'fsccl-config.cmake').write_text(config, encoding='utf-8')
        header.write_text('')
        (package.parents[1] / re.search(r'libfsccl\.so\.\d+\.\d+\.\d+', config)[0]).write_text('')
        (system / 'lib').symlink_to('usr/lib')
        (trial / 'CMakeLists.txt').write_text(
            'cmake_minimum_required(VERSION 3.18)\nproject(found NONE)\n'
            'find_package(fsccl CONFIG REQUIRED)\n'
            'get_target_property(headers fsccl::fsccl INTERFACE_INCLUDE_DIRECTORIES)\n'
            'message(STATUS "headers: ${headers}")\n'
        )
        for name, prefix in {'usr': system / 'usr', 'link': system}.items():
            output = run(
                'cmake',
                *('-S', trial, '-B', self.folder / f'build-{name}'),
                f'-Dfsccl_DIR={prefix / libdir / "cmake/fsccl"}',
                env=self.environment,
            )
            expect(f'headers: {system}/usr/include\n' in output, output)

    def set_up_subproject(self):
        source = self.folder / 'source'
        shutil.copytree(self.root / 'tests/linking/outside', source)
        (source / 'subprojects').mkdir()
        (source / 'subprojects/fsccl').symlink_to(self.root)
        run(*self.meson, 'setup', self.folder / 'build', source, env=self.environment)

    def subproject_setup(self):
        self.set_up_subproject()
        targets = json.loads(
            run(*self.meson, 'introspect', '--targets', self.folder / 'build', env=self.environment)
        )
        built = {target['name']: target['type'] for target in targets if target['build_by_default']}
        programs = sorted(name for name, kind in built.items() if kind == 'executable')
        expect(programs == ['outside'], f'a subproject builds the programs {programs}')
        expect(
            built.get('fsccl') == 'shared library',
            f'a subproject builds {sorted(built)}, without the library fsccl',
        )
        tests = json.loads(
            run(*self.meson, 'introspect', '--tests', self.folder / 'build', env=self.environment)
        )
        expect(tests == [], f'a subproject has {len(tests)} tests')

    def subproject(self):
        self.set_up_subproject()
        run(*self.meson, 'compile', '-C', self.folder / 'build', env=self.environment)
        self.check(self.folder / 'build/outside')


if __name__ == '__main__':
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    way, root, build, folder, meson = sys.argv[1:]
    linking = Linking(
        pathlib.Path(root).resolve(), build, pathlib.Path(folder).resolve() / way, meson
    )
    {
        'pkg-config': linking.pkg_config,
        'cmake': linking.cmake,
        'cmake-links': linking.cmake_links,
        'subproject': linking.subproject,
        'subproject-setup': linking.subproject_setup,
    }[way]()
