#!/usr/bin/env python3
"""Checks that whatever blocks in the library goes through wait_until() or wait_unless() of
base/wait.h, which take a deadline and a reason to end early. A call that sleeps, yields or polls
elsewhere is refused, except in the files below, each of which has its reason.
"""

import re

import harness

FOLDERS = ('src', 'transports', 'allocators')
SLEEPS = re.compile(
    r'\b(nanosleep|clock_nanosleep|usleep|sched_yield|ppoll|pselect|epoll_wait|epoll_pwait2?|futex_wait|'
    r'futex_sleep|sleep_ns|yield_core|sleep_for|this_thread::yield|SYS_futex(?:_waitv)?)\s*\(|(?<!\w)::poll\s*\(|'
    r'\bSYS_futex(?:_waitv)?\b|\bcondition_variable\b|\.wait(?:_for|_until)?\s*\(\s*lock'
)
ALLOWED = {
    'src/base/wait.h': 'the primitive and its pauses',
    'src/base/threads.h': 'what the pauses are made of',
    'src/base/threads.cpp': 'what the pauses are made of',
    'src/base/futex.h': 'sleeping on a word, a pause',
    'src/base/socket.cpp': 'sleeping on a descriptor, the pause of wait_ready()',
    'src/base/json_file.cpp': 'sleeping on a FIFO that is read, with a deadline',
    'src/base/write_file.cpp': 'sleeping on a device that is written to, with a deadline and without memory',
    'src/base/reactor.cpp': 'the service thread sleeps between two rounds',
    'src/engine/progress.cpp': 'the service thread sleeps between two rounds',
    'src/engine/wait.cpp': 'the pauses of waits for operations',
    'src/select/startup.cpp': 'sleeping on a word, a pause',
    'src/record/recording.cpp': 'a bounded number of looks at a file that is being written',
    'src/bootstrap/tree_mending.cpp': 'the thread that mends the tree sleeps between two rounds',
    'transports/shm/shm.cpp': 'sleeping on a word, a pause',
    'transports/tcp/node.cpp': 'looks at its sockets without waiting',
    'transports/ucx/exchange.cpp': 'a pause that moves UCX on',
    'transports/mirror/node_service.cpp': 'the service thread of a network sleeps between two rounds',
}


def without_comments(line):
    return re.sub(r'//.*|"(?:\\.|[^"\\])*"', '', line)


def check(root):
    problems = []
    for path in harness.source_files(root, {'.h', '.cpp'}, FOLDERS):
        name = path.relative_to(root).as_posix()
        if name in ALLOWED or name.startswith('transports/sim/'):
            continue
        for number, line in enumerate(path.read_text(encoding='utf-8').split('\n'), 1):
            found = SLEEPS.search(without_comments(line))
            if found:
                problems.append(
                    f'{name}:{number}: "{found[0].strip()}" waits by itself: use wait_until() of '
                    f'base/wait.h, '
                    'with a deadline and with what ends the wait early'
                )
    return problems


SAMPLES = [
    (
        'right',
        {'src/base/a.cpp': 'void f() { wait_until(a, b, c, Naps(1)); }  // not nanosleep(x)\n'},
        None,
    ),
    ('a test may', {'tests/a.cpp': 'usleep(1);\n'}, None),
    ('the primitive may', {'src/base/wait.h': 'yield_core();\n'}, None),
    (
        'poll of a transport',
        {'src/a.cpp': 'transport->poll(channel, peer); transport_.poll(a);\n'},
        None,
    ),
    (
        'nanosleep',
        {'src/a/b.cpp': 'while (!x) nanosleep(&t, nullptr);\n'},
        'src/a/b.cpp:1: "nanosleep("',
    ),
    ('yield', {'transports/t.cpp': '\nstd::this_thread::yield();\n'}, 'transports/t.cpp:2'),
    (
        'condition',
        {'allocators/t.cpp': 'changed_.wait(lock, [] { return x; });\n'},
        'waits by itself',
    ),
    ('poll', {'src/t.cpp': '::poll(&one, 1, -1);\n'}, 'waits by itself'),
    ('variable', {'src/t.h': 'std::condition_variable c_;\n'}, 'condition_variable'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
