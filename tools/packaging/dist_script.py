#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`meson dist` runs this before it packs the sources. The script adds the bill of materials of
the sources, and gives every file the same time and the same rights, so that the archive of a commit
is the same wherever it is packed. The time is SOURCE_DATE_EPOCH, or else that of the commit.
"""

import os
import sys
from pathlib import Path

from bill_of_materials import bill_of_sources

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ask_git import ask_git


def main():
    try:
        sources, build, target = (
            Path(os.environ[f'MESON_{name}']) for name in ('SOURCE_ROOT', 'BUILD_ROOT', 'DIST_ROOT')
        )
    except KeyError as error:
        sys.exit(f'dist_script.py: {error} is not set: run `meson dist`, which runs this')
    (target / 'fsccl.cdx.json').write_text(bill_of_sources(build), encoding='utf-8')
    time = os.environ.get('SOURCE_DATE_EPOCH')
    if not time:
        time = ask_git(sources, 'log', '-1', '--format=%ct')
    for path in [*target.rglob('*'), target]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (int(time), int(time)), follow_symlinks=False)


if __name__ == '__main__':
    main()
