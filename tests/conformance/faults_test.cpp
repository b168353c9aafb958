// Tests debug mode of slots: an access that the caller may not make ends the process with SIGSEGV,
// as it would without debug mode, after a line that says what was touched. Each test runs in a
// process of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/asan.h"
#include "support.h"

namespace fsccl::testing {
namespace {

constexpr int64_t kElements = 5000;

struct FaultCase {
  fsccl_sharing_t sharing = FSCCL_SHARING_READ_ONLY;
  fsccl_keep_t keep = FSCCL_KEEP_NONE;
  fsccl_unshard_mode_t mode = FSCCL_UNSHARD_READ;
  int ranks = 1;
};

// A unit with its pool in debug mode, gathered as the case says.
struct Layer {
  fsccl_pool_t pool = nullptr;
  fsccl_unit_t unit = nullptr;
  Layer(fsccl_comm_t comm, const FaultCase& c) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.debug = 1;
    config.name = "slots";
    EXPECT_OK(fsccl_pool_create(comm, &config, &pool));
    fsccl_unit_config_t unit_config = FSCCL_UNIT_CONFIG_INIT;
    unit_config.shard_comm = comm;
    unit_config.pool = pool;
    unit_config.name = "layer3";
    unit_config.sharing = c.sharing;
    unit_config.keep = c.keep;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1, param.shape[0] = kElements;
    EXPECT_OK(fsccl_unit_create(&unit_config, &param, 1, &unit));
  }
  char* param() const {
    fsccl_view_t view{};
    EXPECT_OK(fsccl_unit_param(unit, 0, &view));
    return static_cast<char*>(view.data);
  }
  char* grad() const {
    fsccl_view_t view{};
    EXPECT_OK(fsccl_unit_grad(unit, 0, nullptr, &view));
    return static_cast<char*>(view.data);
  }
};

void run(const FaultCase& c, const std::function<void(const Layer&, bool last)>& body) {
  run_ranks(c.ranks, [&](Rank& self) {
    const Layer layer(self.comm, c);
    EXPECT_OK(fsccl_unit_unshard(layer.unit, c.mode, nullptr, nullptr));
    body(layer, self.rank == self.ranks - 1);
    EXPECT_OK(fsccl_unit_destroy(layer.unit));
    EXPECT_OK(fsccl_pool_destroy(layer.pool));
  });
}

void write_byte(char* address) { *static_cast<volatile char*>(address) = 1; }
char read_byte(const char* address) { return *static_cast<const volatile char*>(address); }

// Returns whether the process ended by the signal or, if a sanitizer handles the signal itself, by
// the sanitizer's exit.
bool ended_by_it(int status) {
#if defined(FSCCL_ASAN) || defined(__SANITIZE_THREAD__)
  return WIFEXITED(status) && WEXITSTATUS(status) != 0;
#else
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
#endif
}

class Faults : public ::testing::Test {
 protected:
  // A death test that only forks would run in the child of a process that uses the library, where
  // the library refuses all calls. In this style the child starts the program anew.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(Faults, AWriteToReadOnlyParameters) {
  EXPECT_DEATH(run({.ranks = 2},
                   [](const Layer& layer, bool last) {
                     char* param = layer.param();
                     if (last) write_byte(param + 70);
                     while (!last) read_byte(param);  // the other rank has a view of its own
                   }),
               "write to 0x[0-9a-f]+, byte 70 of parameters of unit 'layer3' \\(10048 bytes in "
               "pool 'slots' of rank 1\\), which "
               "are read-only");
}

// The gather was only for reading, so a write is refused, although no other rank would see it.
TEST_F(Faults, AWriteToPrivateParameters) {
  EXPECT_DEATH(run({.sharing = FSCCL_SHARING_PRIVATE},
                   [](const Layer& layer, bool) { write_byte(layer.param()); }),
               "write to .*parameters of unit 'layer3'.* read-only");
}

TEST_F(Faults, ReadsAndWritesAfterReshard) {
  const auto after = [](const FaultCase& c, bool writes) {
    run(c, [&](const Layer& layer, bool) {
      char* param = layer.param();
      read_byte(param);
      EXPECT_OK(fsccl_unit_reshard(layer.unit, nullptr));
      writes ? write_byte(param + 8) : static_cast<void>(read_byte(param + 8));
    });
  };
  EXPECT_DEATH(after({}, false),
               "read of 0x[0-9a-f]+, byte 8 of parameters of unit 'layer3'.* after their slot was "
               "given back");
  EXPECT_DEATH(after({}, true),
               "write to 0x[0-9a-f]+, byte 8 of parameters of unit 'layer3'.* after their slot was "
               "given back");
  EXPECT_DEATH(after({.sharing = FSCCL_SHARING_PRIVATE}, true),
               "write to .*parameters of unit 'layer3'.* given back");
  EXPECT_DEATH(after({.sharing = FSCCL_SHARING_COPY_ON_WRITE}, false),
               "read of .*parameters of unit 'layer3'.* given back");
  EXPECT_DEATH(after({.mode = FSCCL_UNSHARD_WRITABLE}, true),
               "write to .*parameters of unit 'layer3'.* given back");
}

TEST_F(Faults, GradientsAfterTheirReductionWasSubmitted) {
  const auto after = [](bool writes) {
    run({}, [&](const Layer& layer, bool) {
      char* grad = layer.grad();
      std::memset(grad, 0, kElements * 2);
      EXPECT_OK(fsccl_unit_reduce_grads(layer.unit, nullptr, nullptr, nullptr));
      writes ? write_byte(grad) : static_cast<void>(read_byte(grad));
    });
  };
  EXPECT_DEATH(after(true),
               "write to 0x[0-9a-f]+, byte 0 of gradients of unit 'layer3'.* after their slot was "
               "given back");
  EXPECT_DEATH(after(false), "read of .*gradients of unit 'layer3'");
}

TEST_F(Faults, AForkedChildDoesNotHaveThem) {
  EXPECT_DEATH(run({},
                   [](const Layer& layer, bool) {
                     char* param = layer.param();
                     const pid_t child = fork();
                     if (child == 0) read_byte(param);
                     int status = 0;
                     if (waitpid(child, &status, 0) == child && ended_by_it(status)) std::abort();
                   }),
               "parameters of unit 'layer3'.*; this is a child of fork\\(\\), which does not have "
               "the memory of pools");
}

TEST_F(Faults, FarFromAnySlot) {
  EXPECT_DEATH(run({}, [](const Layer& layer, bool) { read_byte(layer.param() + (1 << 22)); }),
               "of pool 'slots' of rank 0, in no slot");
}

// A handler that the program had set before is called next. Without one the process ends by the
// signal.
TEST_F(Faults, TheHandlerBeforeIsCalled) {
  const auto with_handler = [] {
    std::signal(SIGSEGV, [](int) { std::_Exit(77); });
    run({}, [](const Layer& layer, bool) { write_byte(layer.param()); });
  };
  EXPECT_EXIT(with_handler(), ::testing::ExitedWithCode(77), "read-only");
  const auto without = [] {
    std::signal(SIGSEGV, SIG_DFL);
    run({}, [](const Layer& layer, bool) { write_byte(layer.param()); });
  };
  EXPECT_EXIT(without(), ::testing::KilledBySignal(SIGSEGV), "read-only");
  const auto another = [] {
    std::signal(SIGSEGV, SIG_DFL);
    run({}, [](const Layer&, bool) { std::raise(SIGSEGV); });
  };
  EXPECT_EXIT(another(), ::testing::KilledBySignal(SIGSEGV), "");
}

// Correct accesses, over several steps and in every kind of slot, are no faults. A kept unit's
// parameters can be read after reshard.
TEST_F(Faults, NoneWhereAllIsRight) {
  for (const fsccl_sharing_t sharing :
       {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE, FSCCL_SHARING_COPY_ON_WRITE})
    for (const fsccl_keep_t keep : {FSCCL_KEEP_NONE, FSCCL_KEEP_ALWAYS})
      for (const fsccl_unshard_mode_t mode : {FSCCL_UNSHARD_READ, FSCCL_UNSHARD_WRITABLE})
        run_ranks(2, [&](Rank& self) {
          const Layer layer(self.comm, {.sharing = sharing, .keep = keep});
          for (int i = 0; i < 5; i++) {
            ASSERT_OK(fsccl_unit_mark_changed(layer.unit));
            ASSERT_OK(fsccl_unit_unshard(layer.unit, mode, nullptr, nullptr));
            char* param = layer.param();
            for (int64_t at = 0; at < 2 * kElements; at++) ASSERT_EQ(read_byte(param + at), 0);
            if (mode == FSCCL_UNSHARD_WRITABLE || sharing == FSCCL_SHARING_COPY_ON_WRITE)
              std::memset(param, 7, 2 * kElements);
            char* grad = layer.grad();
            for (int64_t at = 0; at < 2 * kElements; at++) ASSERT_EQ(read_byte(grad + at), '\xff');
            std::memset(grad, 0, 2 * kElements);
            ASSERT_OK(fsccl_unit_reshard(layer.unit, nullptr));
            if (keep == FSCCL_KEEP_ALWAYS && mode == FSCCL_UNSHARD_READ) read_byte(param);
            ASSERT_OK(fsccl_unit_reduce_grads(layer.unit, nullptr, nullptr, nullptr));
            ASSERT_OK(fsccl_pool_step(layer.pool));
          }
          EXPECT_OK(fsccl_unit_destroy(layer.unit));
          EXPECT_OK(fsccl_pool_destroy(layer.pool));
        });
}

}  // namespace
}  // namespace fsccl::testing
