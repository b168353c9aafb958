#!/usr/bin/env python3
"""Checks calls that make descriptors and calls that make files larger.

Each call that makes a descriptor stands in make_fd() (src/base/fd.h), so that no descriptor of the
library gets the number of a standard stream that the program has closed. Each call that makes a
file larger stands where a limit of file sizes causes an error and no signal
(src/base/write_file.h). Files are not opened as streams of the standard library, which do neither.
"""

import re

import harness

FOLDERS = ('src', 'transports', 'allocators')
MAKES = (
    'open|openat|openat2|creat|socket|socketpair|accept|accept4|pipe|pipe2|dup|dup2|memfd_create|memfd_secret|eventfd|'
    'epoll_create|epoll_create1|timerfd_create|signalfd|inotify_init|inotify_init1|pidfd_open|pidfd_getfd|perf_event_open|'
    'userfaultfd|fanotify_init|mkstemp|mkostemp|shm_open|opendir|fopen|freopen|tmpfile|popen|dlopen'
)
# A call of the system, or a number by which syscall() or fcntl() makes a descriptor. A plain open()
# without the system's flags is a function of a class.
CALL = re.compile(rf'(?<![\w.>:])(?:::)?({MAKES})\s*\(|\b(F_DUPFD(?:_CLOEXEC)?|SYS_(?:{MAKES}))\b')
GROWS = re.compile(
    r'(?<![\w.>:])(?:::)?(ftruncate|truncate|fallocate|posix_fallocate|pwrite|writev|copy_file_range|sendfile)\s*\('
)
STREAM = re.compile(r'\bstd::(i|o|)fstream\b')
RECEIVES = re.compile(r'\bMSG_CMSG_CLOEXEC\b')
# The files that contain these places themselves.
PLACES = {'src/base/fd.cpp', 'src/base/write_file.cpp', 'src/base/reserve_file.h'}
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def blank(match):
    return re.sub(r'[^\n]', ' ', match[0])


def line_of(text, match):
    return text.count('\n', 0, match.start()) + 1


def guarded(text, position, guard, lines_before):
    """Returns true if an object of the guard's type is made in the lines before."""
    return guard in '\n'.join(text[:position].split('\n')[-lines_before - 1 :])


def problems_of(name, text):
    for match in CALL.finditer(text):
        before = text[
            text.rfind(';', 0, match.start()) + 1 : match.start()
        ]  # the beginning of the statement, with the head of a lambda
        own = (
            match[1] == 'open'
            and not match[0].startswith('::')
            and ' O_' not in text[match.end() :].split(';')[0]
        )
        declared = re.search(r'(?:int|ssize_t) $', before)
        if (
            own
            or declared
            or 'make_fd(' in before
            or guarded(text, match.start(), 'StandardNumbersTaken', 3)
        ):
            continue
        yield f'{name}:{line_of(text, match)}: {match[1] or match[2]}() outside of make_fd() (base/fd.h)'
    for match in RECEIVES.finditer(text):
        if not guarded(text, match.start(), 'StandardNumbersTaken', 3):
            yield f'{name}:{line_of(text, match)}: descriptors come while there is no StandardNumbersTaken (base/fd.h)'
    for match in GROWS.finditer(text):
        arguments = text[match.end() : match.end() + 200]
        if 'FALLOC_FL_PUNCH_HOLE' in arguments or guarded(
            text, match.start(), 'FileSignalsHeld', 3
        ):
            continue
        yield (
            f'{name}:{line_of(text, match)}: {match[1]}() may raise SIGXFSZ: use resize_file() or '
            f'write_all() '
            '(base/write_file.h), or hold FileSignalsHeld'
        )
    for match in STREAM.finditer(text):
        yield f'{name}:{line_of(text, match)}: {match[0]}: use base/small_file.h, read_text_file() or WholeFile'


def check(root):
    problems = []
    for path in harness.source_files(root, {'.h', '.cpp'}, FOLDERS):
        name = path.relative_to(root).as_posix()
        if name not in PLACES:
            problems += problems_of(name, COMMENT.sub(blank, path.read_text(encoding='utf-8')))
    return problems


SAMPLES = [
    (
        'right',
        {'src/a.cpp': 'Fd fd = make_fd([&] { return ::open(path, O_RDONLY | O_CLOEXEC); });\n'},
        None,
    ),
    (
        'right over lines',
        {
            'src/a.cpp': 'fd = make_fd([&] {\n  return ::open(path,\n      O_RDONLY | O_CLOEXEC);\n});\n'
        },
        None,
    ),
    (
        'adopted',
        {'src/a.cpp': 'f();\nFd fd(::open(path, O_RDONLY | O_CLOEXEC));\n'},
        'src/a.cpp:2: open() outside of make_fd()',
    ),
    ('plain', {'transports/a.cpp': 'int null = open("/dev/null", O_RDWR);\n'}, 'open() outside'),
    (
        'copy',
        {'allocators/a.cpp': 'Fd fd(fcntl(other, F_DUPFD_CLOEXEC, 0));\n'},
        'F_DUPFD_CLOEXEC() outside',
    ),
    (
        'shared memory',
        {'src/a.cpp': 'const int fd = memfd_create(name, 0);\n'},
        'memfd_create() outside',
    ),
    (
        'accepted',
        {'src/a.cpp': 'Fd fd(uninterrupted([&] { return accept4(fd, nullptr, nullptr, 0); }));\n'},
        'accept4() outside',
    ),
    ('folder', {'src/a.cpp': 'DIR* all = opendir(path);\n'}, 'opendir() outside'),
    (
        'member',
        {
            'src/a.h': 'Result<A> open(int fd);\nbool is() { return file.open(path) && A::open(1); }\n'
        },
        None,
    ),
    ('received', {'src/a.cpp': 'recvmsg(fd, &message, MSG_CMSG_CLOEXEC);\n'}, 'descriptors come'),
    (
        'received rightly',
        {
            'src/a.cpp': 'const StandardNumbersTaken taken;\nrecvmsg(fd, &message, MSG_CMSG_CLOEXEC);\n'
        },
        None,
    ),
    (
        'grows',
        {'src/a.cpp': 'f();\nif (ftruncate(fd, 8)) return;\n'},
        'src/a.cpp:2: ftruncate() may raise SIGXFSZ',
    ),
    (
        'gives back',
        {'src/a.cpp': 'fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8);\n'},
        None,
    ),
    ('stream', {'src/a.cpp': 'std::ifstream file(path);\n'}, 'std::ifstream'),
    ('comment', {'src/a.cpp': '// open(path, O_RDONLY)\n'}, None),
    ('test', {'tests/a.cpp': 'int fd = ::open(path, O_RDONLY);\n'}, None),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
