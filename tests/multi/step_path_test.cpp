// Tests that a step which has been recorded allocates no memory and makes no system call but waits.
// Two processes do a hundred steps, and the plain collectives beside them. Every call of malloc is
// counted, and a seccomp filter lets only waits pass.
#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "multi/processes.h"

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
thread_local bool counting = false;
thread_local int allocations = 0;
}  // namespace

// The library's allocations call these functions as well, because the program's definitions come
// first.
extern "C" {
void* malloc(size_t bytes) {
  allocations += counting;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  allocations += counting;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  allocations += counting;
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  allocations += counting;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  allocations += counting;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** result, size_t alignment, size_t bytes) {
  allocations += counting;
  *result = __libc_memalign(alignment, bytes);
  return *result ? 0 : ENOMEM;
}
}

namespace fsccl::testing {
namespace {

constexpr int kUnits = 4, kParams = 6;

// Prints the number of a system call that the filter traps, and ends the process.
void trapped(int, siginfo_t* info, void*) {
  char text[64];
  const int length = snprintf(text, sizeof text, "system call %d\n", info->si_syscall);
  (void)!write(STDOUT_FILENO, text, static_cast<size_t>(length));
  _exit(9);
}

// Installs a filter. From then on this thread may only wait, ask for the time and for its
// processor, print and end.
bool allow_waits_only() {
  struct sigaction action{};
  action.sa_sigaction = trapped;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  constexpr int kAllowed[] = {SYS_futex,           SYS_sched_yield, SYS_clock_gettime,
                              SYS_clock_nanosleep, SYS_getcpu,      SYS_restart_syscall,
                              SYS_rt_sigreturn,    SYS_write,       SYS_exit_group};
  std::array<sock_filter, 2 * std::size(kAllowed) + 2> program{};
  size_t at = 0;
  program[at++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  for (const int number : kAllowed) {
    program[at++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1);
    program[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  program[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  const sock_fprog filter{static_cast<uint16_t>(at), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

struct Trainer {
  fsccl_comm_t comm = nullptr;
  fsccl_pool_t pool = nullptr;
  fsccl_unit_t units[kUnits]{};
  void *send = nullptr, *recv = nullptr;
  std::array<std::array<fsccl_param_t, kParams>, kUnits> params{};

  bool open(const Child& child) {
    if (fsccl_comm_create(nullptr, &comm) || fsccl_pool_create(comm, nullptr, &pool)) return false;
    for (int u = 0; u < kUnits; u++) {
      for (int p = 0; p < kParams; p++) {
        fsccl_param_t& param = params[static_cast<size_t>(u)][static_cast<size_t>(p)];
        param = FSCCL_PARAM_INIT;
        param.dims = 2;
        param.shape[0] = 33 + p;
        param.shape[1] = 65;
      }
      fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
      config.pool = pool;
      config.shard_comm = comm;
      if (fsccl_unit_create(&config, params[static_cast<size_t>(u)].data(), kParams, &units[u]))
        return false;
    }
    return !fsccl_pool_alloc(pool, kBytes, nullptr, &send) &&
           !fsccl_pool_alloc(pool, kBytes * static_cast<size_t>(child.ranks), nullptr, &recv);
  }

  // Runs a step and returns the name of the first failing call, or null.
  const char* step(bool in_flight) {
    for (fsccl_unit_t unit : units)
      if (fsccl_unit_mark_changed(unit)) return "mark_changed";
    for (fsccl_unit_t unit : units)
      if (const char* failed = unshard(unit, in_flight)) return failed;
    for (int u = kUnits - 1; u >= 0; u--) {
      if (const char* failed = unshard(units[u], in_flight)) return failed;
      for (size_t p = 0; p < kParams; p++) {
        fsccl_view_t view;
        if (fsccl_unit_grad(units[u], p, nullptr, &view)) return "grad";
        std::memset(view.data, 0, view.count * fsccl_dtype_size(view.dtype));
      }
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      fsccl_reduce_result_t result;
      config.result = &result;
      fsccl_work_t work = nullptr;
      if (fsccl_unit_reduce_grads(units[u], &config, nullptr, in_flight ? &work : nullptr) < 0)
        return "reduce_grads";
      if (in_flight && (fsccl_work_wait(work, -1) || fsccl_work_release(work))) return "wait";
    }
    return fsccl_pool_step(pool) ? "pool_step" : nullptr;
  }
  const char* unshard(fsccl_unit_t unit, bool in_flight) {
    fsccl_work_t work = nullptr;
    if (fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, in_flight ? &work : nullptr) < 0)
      return "unshard";
    if (in_flight && (fsccl_work_wait(work, -1) || fsccl_work_release(work))) return "wait";
    fsccl_view_t view;
    return fsccl_unit_param(unit, 0, &view)    ? "param"
           : fsccl_unit_reshard(unit, nullptr) ? "reshard"
                                               : nullptr;
  }
  const char* collectives() {
    for (const size_t count : {size_t{2}, size_t{100}, size_t{5000}}) {
      if (fsccl_all_gather(send, recv, count, FSCCL_FLOAT32, comm, nullptr, nullptr))
        return "all_gather";
      if (fsccl_reduce_scatter(recv, send, count, FSCCL_FLOAT32, FSCCL_SUM, comm, nullptr, nullptr))
        return "reduce_scatter";
      if (fsccl_all_reduce(send, recv, count, FSCCL_FLOAT32, FSCCL_SUM, comm, nullptr, nullptr))
        return "all_reduce";
      if (fsccl_broadcast(recv, count, FSCCL_FLOAT32, 0, comm, nullptr, nullptr))
        return "broadcast";
    }
    return fsccl_barrier(comm, nullptr, nullptr) ? "barrier" : nullptr;
  }

 private:
  static constexpr size_t kBytes = 5000 * sizeof(float);
};

int train(const Child& child) {
  Trainer trainer;
  if (!trainer.open(child)) return 3;
  const auto one = [&](int i) -> const char* {
    if (const char* failed = trainer.step(i % 2)) return failed;
    return trainer.collectives();
  };
  for (int i = 0; i < 6; i++)
    if (const char* failed = one(i)) {
      printf("failed: %s\n", failed);
      return 4;
    }
  puts("recorded");
  if (!allow_waits_only()) return 5;
  counting = true;
  const char* failed = nullptr;
  for (int i = 0; i < 100 && !failed; i++) failed = one(i);
  counting = false;
  // From here on nothing may use buffered output, because the filter is still there.
  char text[96];
  const int length = snprintf(text, sizeof text, "steps done: %s, %d allocations\n",
                              failed ? failed : "all", allocations);
  (void)!write(STDOUT_FILENO, text, static_cast<size_t>(length));
  // To a process that still waits in the last barrier, a process that ended now would be a dead
  // peer. So both stay until the test kills them.
  while (true) {
    const timespec second{1, 0};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &second, nullptr);
  }
}

// Makes a forbidden call, which shows that the test can fail.
int deny(const Child&) {
  counting = true;
  std::free(std::malloc(8));
  counting = false;
  if (allocations != 1 || !allow_waits_only()) return 3;
  (void)getppid();
  return 0;
}

TEST(StepPath, NeitherAllocatesNorCallsTheSystemButToWait) {
  for (const char* spin_us : {"auto", "0"}) {  // with 0 every wait sleeps
    Processes processes;
    for (int rank = 0; rank < 2; rank++)
      processes.start("train", rank, 2,
                      {{"RANK", std::to_string(rank)},
                       {"WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "20177"},
                       {"FSCCL_SPIN_US", spin_us}});
    for (int rank = 0; rank < 2; rank++)
      EXPECT_TRUE(processes.wait_for_output(rank, "steps done", 60'000)) << processes.report();
    for (int rank = 0; rank < 2; rank++) processes.kill(rank, SIGKILL);
    processes.finish(60'000);
    for (int rank = 0; rank < 2; rank++)
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("all, 0 allocations"));
  }
}

TEST(StepPath, TheFilterTraps) {
  Processes processes;
  processes.start("deny", 0, 1, {});
  EXPECT_FALSE(processes.finish(20'000));
  EXPECT_THAT(processes.output(0),
              ::testing::HasSubstr("system call " + std::to_string(SYS_getppid)));
}

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv, {{"train", train}, {"deny", deny}})) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
