/* Two ranks that call fsccl_all_gather(), for tools/count_functions: rank 0 notes which functions
 * one of the calls enters, and when it gives bytes to a socket. The library is built with
 * -finstrument-functions, so each of its functions calls __cyg_profile_func_enter() first.
 *
 * usage: count_functions_ranks host|gpu BYTES
 *
 * It prints a line for each function, with its file and its place there, or "wire" for a socket. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fsccl/fsccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "local_ranks.h"

enum { kCallsBefore = 300, kMostFunctions = 1 << 16 };

static const void* entered[kMostFunctions];
static int entries;
static __thread int noting;

static void note(const void* function) {
  if (noting && entries < kMostFunctions) entered[entries++] = function;
}

void __cyg_profile_func_enter(void* function, void* site);
void __cyg_profile_func_exit(void* function, void* site);
void __cyg_profile_func_enter(void* function, void* site) {
  (void)site;
  note(function);
}
void __cyg_profile_func_exit(void* function, void* site) {
  (void)function;
  (void)site;
}

/* The functions of the program replace those of the C library. */
ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  note(NULL);
  return syscall(SYS_sendmsg, fd, message, flags);
}
ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  note(NULL);
  return syscall(SYS_sendto, fd, bytes, size, flags, NULL, 0);
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
  note(NULL);
  return syscall(SYS_writev, fd, parts, count);
}

static int failed(const char* call) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  fprintf(stderr, "%s: %s\n", call, error.text);
  return 1;
}
#define CHECK(call) \
  if ((call) < 0) return failed(#call)

static void* memory_of_gpu(int ordinal, size_t bytes) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  unsigned long long memory = 0;
  void* context = NULL;
  int device = 0;
  int (*init)(unsigned), (*get)(int*, int), (*retain)(void**, int), (*push)(void*);
  int (*allocate)(unsigned long long*, size_t);
  if (!driver) return NULL;
  *(void**)&init = dlsym(driver, "cuInit");
  *(void**)&get = dlsym(driver, "cuDeviceGet");
  *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void**)&push = dlsym(driver, "cuCtxPushCurrent_v2");
  *(void**)&allocate = dlsym(driver, "cuMemAlloc_v2");
  if (!init || !get || !retain || !push || !allocate || init(0) || get(&device, ordinal) ||
      retain(&context, device) || push(context) || allocate(&memory, bytes))
    return NULL;
  return (void*)(uintptr_t)memory;
}

static void print_entered(void) {
  int i;
  for (i = 0; i < entries; ++i) {
    Dl_info found;
    if (!entered[i])
      puts("wire");
    else if (dladdr(entered[i], &found))
      printf("%s %zx\n", found.dli_fname, (size_t)((char*)entered[i] - (char*)found.dli_fbase));
  }
}

static int run(int rank, fsccl_unique_id_t* id, int on_gpu, size_t bytes) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  fsccl_comm_t comm;
  int call;
  char* const send = on_gpu ? memory_of_gpu(rank, 3 * bytes) : calloc(3, bytes);
  if (!send) return fprintf(stderr, "no memory of %zu bytes\n", 3 * bytes), 1;
  config.unique_id = id;
  config.rank = rank;
  config.ranks = 2;
  CHECK(fsccl_comm_create(&config, &comm));
  for (call = 0; call <= kCallsBefore; ++call) {
    noting = rank == 0 && call == kCallsBefore;
    CHECK(fsccl_all_gather(send, send + bytes, bytes, FSCCL_UINT8, comm, NULL, NULL));
  }
  noting = 0;
  CHECK(fsccl_comm_destroy(comm));
  if (rank == 0) print_entered();
  return 0;
}

int main(int count, char** words) {
  fsccl_unique_id_t id;
  int rank;
  if (count != 3) return fprintf(stderr, "usage: count_functions_ranks host|gpu BYTES\n"), 2;
  rank = local_ranks_start(2, &id);
  if (rank < 0) return 1;
  return local_ranks_finish(
      rank, 2, run(rank, &id, strcmp(words[1], "gpu") == 0, strtoul(words[2], NULL, 10)));
}
