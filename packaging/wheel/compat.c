// SPDX-License-Identifier: Apache-2.0 This file has the functions that FSCCL calls and glibc 2.28
// does not have yet. It is linked into the wheel's library, which does not show it to others.
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

pid_t gettid(void);

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }  // glibc 2.30
