"""Makes the environments of Python that hold the tools of this tree, from PyPI."""

import pathlib
import subprocess
import sys
import venv


def complete(folder, requirements):
    """Makes the environment once, and again when the requirements have changed. If that fails, the
    program ends with an error of one line."""
    stamp, wanted = folder / '.complete', requirements.read_text(encoding='utf-8')
    if stamp.is_file() and stamp.read_text(encoding='utf-8') == wanted:
        return
    program = pathlib.Path(sys.argv[0]).name
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(
            f'{program}: no virtual environment can be made in {folder} ({error}): install venv '
            '(apt install python3-venv) and run this again'
        )
    pip = [folder / 'bin/pip', 'install', '--quiet', '--disable-pip-version-check']
    done = subprocess.run(
        [*pip, '--requirement', requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or f'exit status {done.returncode}').splitlines()[-1]
        sys.exit(
            f'{program}: pip could not install {requirements} into {folder} ({said}): run this '
            'again where PyPI can be reached, or let PIP_INDEX_URL name a mirror'
        )
    stamp.write_text(wanted, encoding='utf-8')
