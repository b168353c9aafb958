#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of a build of FSCCL, in CycloneDX 1.6, from what Meson found for it.

usage: bill_of_materials.py BUILD_FOLDER [OUTPUT]

The same build gives the same bytes: there is no time in it, and its serial number is made from its
content.
"""

import json
import sys
import uuid
from pathlib import Path

# Each dependency, by its name in meson.build, with its licence and how the library takes it. A
# dependency that is not here is an error; add it.
KNOWN = {
    'fmt': ('MIT', 'linked'),
    'libsodium': ('ISC', 'linked'),
    'libhwy': ('Apache-2.0', 'headers'),
    'hwloc': ('BSD-3-Clause', 'headers; the library is loaded when it is there'),
    'ucx': ('BSD-3-Clause', 'headers; the library is loaded when it is there'),
    'nlohmann_json': ('MIT', 'headers'),
    'CLI11': ('BSD-3-Clause', 'headers, of the programs alone'),
}
OTHERS = {'threads', 'dl', 'm'}  # headers of the system's C library
TESTS = {
    'gtest',
    'gmock',
    'gtest_main',
    'benchmark',
    'fsccl',
}  # packages of the tests and of perf/micro, which are not installed


def component(name, version=None):
    """Returns the entry of a dependency: of what a build found, or of what sources need, which has
    no version."""
    licence, use = KNOWN[name]
    purl = f'pkg:generic/{name.lower()}' + (f'@{version}' if version else '')
    return {
        'type': 'library',
        'bom-ref': purl,
        'name': name,
        **({'version': version} if version else {}),
        'purl': purl,
        'scope': 'required' if use == 'linked' else 'optional',
        'licenses': [{'license': {'id': licence}}],
        'properties': [{'name': 'fsccl:use', 'value': use}],
    }


def read(folder, name):
    return json.loads((folder / f'meson-info/intro-{name}.json').read_text(encoding='utf-8'))


def bill_of_sources(folder):
    """Returns the bill of the sources that a build folder is configured for. Nothing of the machine
    is in it."""
    return bill(folder, [component(name) for name in sorted(KNOWN)])


def bill_of_build(folder):
    """Returns the bill of a build, with the versions that Meson found."""
    dependencies = {found['name']: found for found in read(folder, 'dependencies')}
    unknown = sorted(set(dependencies) - set(KNOWN) - OTHERS - TESTS)
    if unknown:
        sys.exit(
            f'bill_of_materials.py: no licence is known for {", ".join(unknown)}: add a line to '
            f'KNOWN in {__file__}'
        )
    known = [name for name in sorted(dependencies) if name in KNOWN]
    return bill(folder, [component(name, dependencies[name]['version']) for name in known])


def bill(folder, components):
    version = read(folder, 'projectinfo')['version']
    own = f'pkg:generic/fsccl@{version}'
    content = {
        'bomFormat': 'CycloneDX',
        'specVersion': '1.6',
        'version': 1,
        'metadata': {
            'component': {
                'type': 'library',
                'bom-ref': own,
                'name': 'fsccl',
                'version': version,
                'purl': own,
                'supplier': {'name': 'The FSCCL authors'},
                'licenses': [{'license': {'id': 'Apache-2.0'}}],
            }
        },
        'components': components,
        'dependencies': [{'ref': own, 'dependsOn': [found['bom-ref'] for found in components]}],
    }
    content['serialNumber'] = (
        f'urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))}'
    )
    return json.dumps(content, indent=1, sort_keys=True) + '\n'


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    if not (folder / 'meson-info/intro-dependencies.json').is_file():
        sys.exit(
            f'bill_of_materials.py: {folder} is no build folder of Meson: run `meson setup '
            f'{folder}` first'
        )
    text = bill_of_build(folder)
    if len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(text, encoding='utf-8')
    else:
        sys.stdout.write(text)


if __name__ == '__main__':
    main()
