#!/usr/bin/env python3
"""Compares the public types and signatures with those of an earlier release, by abidiff.

usage: abi_test.py LIBRARY BASELINE | --write LIBRARY BASELINE
"""

import pathlib
import subprocess
import sys
import tempfile

DESCRIBE = ['abidw', '--no-corpus-path', '--no-show-locs', '--no-comp-dir-path']

if sys.argv[1] == '--write':
    subprocess.run([*DESCRIBE, '--out-file', sys.argv[3], sys.argv[2]], check=True)
    sys.exit()
library, baseline = sys.argv[1:]


def differences(described):
    """Returns the report of abidiff on the library and a description, which is empty if programs
    that use the old library still run."""
    command = ['abidiff', '--no-added-syms', '--no-show-locs', described, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f'{done.stdout}{done.stderr}' if done.returncode else ''


found = differences(baseline)
print(found)
if found:
    sys.exit(
        'the public types or signatures are not those of the release: programs that were compiled '
        'with its header would break. A field that was appended to a struct with a size is well: '
        'then, and before 0.1 is out, `ninja abi-baseline` writes the description anew'
    )
# A description with another number must be refused.
text = pathlib.Path(baseline).read_text(encoding='utf-8')
changed = text.replace("'FSCCL_ERR_LIMIT' value='-21'", "'FSCCL_ERR_LIMIT' value='-22'")
with tempfile.NamedTemporaryFile('w', suffix='.abi', encoding='utf-8') as other:
    other.write(changed)
    other.flush()
    if changed == text or 'FSCCL_ERR_LIMIT' not in differences(other.name):
        sys.exit('abidiff did not see a changed number of FSCCL_ERR_LIMIT')
