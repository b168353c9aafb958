// Tests the debug mode of pools with random programs, which take, use and give back blocks, imports
// and a unit's gradients. Each of a thousand programs has exactly one bug, and the first error must
// name the bug's kind and the owner of the memory. A thousand programs without a bug must run
// without an error. The contents of the memory are checked throughout.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

// With the address sanitizer a stray write ends the program at once, so these programs make none.
// faults_test.cpp tests writes that end the program.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kStrayWrites = false;
#else
constexpr bool kStrayWrites = true;
#endif

enum class Bug {
  none,
  double_free,
  write_after_free,
  overrun,
  underrun,
  leak,
  slot_overrun,
  slot_underrun,
  unit_leak,
  kinds
};

struct Allocation {
  unsigned char* data = nullptr;
  size_t bytes = 0;
  bool import = false;
  std::vector<unsigned char> contents;
};

class Program {
 public:
  Program(fsccl_comm_t comm, uint64_t seed, Bug bug) : random_(seed), bug_(bug), comm_(comm) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.debug = 1;
    EXPECT_OK(fsccl_pool_create(comm, &config, &pool_));
  }

  // Returns the first error's text, which is empty when there was none.
  std::string run() {
    const size_t steps = 20 + random_.below(40), at = random_.below(steps);
    if (bug_ == Bug::slot_overrun || bug_ == Bug::slot_underrun || bug_ == Bug::unit_leak ||
        random_.below(4) == 0)
      make_unit();
    for (size_t i = 0; i < steps && error_.empty(); i++) {
      if (i == at) put_bug();
      step();
    }
    finish();
    return error_;
  }
  std::string expected_kind, expected_owner;

 private:
  bool ok(fsccl_status_t status) {
    if (status < 0 && error_.empty()) error_ = explain(status);
    return status == FSCCL_OK;
  }

  void step() {
    switch (random_.below(7)) {
      case 0:
      case 1:
        allocate();
        break;
      case 2:
        if (!live_.empty()) give_back(random_.below(live_.size()));
        break;
      case 3:
        if (unit_) reduce();
        break;
      case 4:
        if (random_.below(8) == 0) import();
        break;
      default:
        if (!live_.empty()) use(live_[random_.below(live_.size())]);
    }
  }

  size_t allocate(size_t bytes = ~size_t{0}) {
    if (bytes == ~size_t{0})
      bytes = random_.below(10) == 0 ? 65536 + random_.below(20000) : random_.below(3000);
    Allocation memory;
    void* pointer = nullptr;
    if (!ok(fsccl_pool_alloc(pool_, bytes, nullptr, &pointer))) return ~size_t{0};
    memory.data = static_cast<unsigned char*>(pointer);
    memory.bytes = bytes;
    const size_t alignment = bytes >= 65536 ? kPage : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % alignment, 0u);
    fill(memory, 0, bytes);
    live_.push_back(std::move(memory));
    return live_.size() - 1;
  }

  size_t import() {
    Allocation memory;
    memory.bytes = (1 + random_.below(3)) * kPage;
    memory.data = static_cast<unsigned char*>(std::aligned_alloc(kPage, memory.bytes));
    memory.import = true;
    fill(memory, 0, memory.bytes);
    if (!ok(fsccl_pool_import(pool_, memory.data, memory.bytes))) return ~size_t{0};
    live_.push_back(std::move(memory));
    return live_.size() - 1;
  }

  void fill(Allocation& memory, size_t begin, size_t end) {
    memory.contents.resize(memory.bytes);
    const auto value = static_cast<unsigned char>(random_.next());
    std::fill(memory.contents.begin() + static_cast<long>(begin),
              memory.contents.begin() + static_cast<long>(end), value);
    if (end > begin) std::memset(memory.data + begin, value, end - begin);
  }

  void use(Allocation& memory) {
    if (memory.bytes == 0) return;
    const size_t begin = random_.below(memory.bytes),
                 end = begin + 1 + random_.below(memory.bytes - begin);
    if (random_.below(2) == 0) fill(memory, begin, end);
    EXPECT_EQ(std::memcmp(memory.data, memory.contents.data(), memory.bytes), 0);
  }

  void give_back(size_t index) {
    Allocation memory = std::move(live_[index]);
    live_.erase(live_.begin() + static_cast<long>(index));
    EXPECT_TRUE(std::equal(memory.contents.begin(), memory.contents.end(), memory.data));
    ok(fsccl_pool_free(pool_, memory.data, nullptr));
    if (memory.import) {
      EXPECT_EQ(std::memcmp(memory.data, memory.contents.data(), memory.bytes), 0);
      std::free(memory.data);
    }
  }

  void make_unit() {
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = comm_;
    config.pool = pool_;
    config.name = "layer7";
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.name = "weight";
    param.dims = 1;
    param.shape[0] = static_cast<int64_t>(1 + random_.below(5000));
    ok(fsccl_unit_create(&config, &param, 1, &unit_));
  }
  // Runs a step of the unit. If `beyond`, it changes one byte outside the gradients: `stray` bytes
  // behind their end, or before their beginning if `stray` is negative.
  void reduce(int64_t stray = 0, bool beyond = false) {
    if (!ok(fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr))) return;
    fsccl_view_t view{};
    ok(fsccl_unit_grad(unit_, 0, nullptr, &view));
    auto* grads = static_cast<unsigned char*>(view.data);
    const auto bytes = static_cast<int64_t>(view.count * fsccl_dtype_size(view.dtype));
    std::memset(grads, 0, static_cast<size_t>(bytes));
    if (beyond) grads[stray < 0 ? stray : bytes + stray] ^= 0x5a;
    ok(fsccl_unit_reshard(unit_, nullptr));
    if (!ok(fsccl_unit_reduce_grads(unit_, nullptr, nullptr, nullptr)))
      ok(fsccl_unit_reduce_grads(unit_, nullptr, nullptr, nullptr));
    ok(fsccl_pool_step(pool_));
  }

  void expect(const char* kind, const Allocation& memory) {
    expected_kind = kind;
    char text[96];
    std::snprintf(text, sizeof text, "%s of %zu bytes at %p", memory.import ? "import" : "block",
                  memory.bytes, static_cast<void*>(memory.data));
    expected_owner = text;
  }

  void put_bug() {
    if (bug_ == Bug::none) return;
    if (bug_ == Bug::slot_overrun || bug_ == Bug::slot_underrun) {
      const auto distance = static_cast<int64_t>(random_.below(64));
      expected_kind =
          bug_ == Bug::slot_overrun ? "beyond the end of 'weight'" : "beyond the begin of 'weight'";
      expected_owner = "gradients of unit 'layer7'";
      return reduce(bug_ == Bug::slot_overrun ? distance : -1 - distance, true);
    }
    if (bug_ == Bug::unit_leak) {
      expected_kind = "still has 1 unit(s)";
      expected_owner = "unit 'layer7' (its parameters are unsharded)";
      return;
    }
    if (bug_ == Bug::leak) {
      leaked_ = random_.below(3) == 0 ? import() : allocate();
      expect("still has", live_[leaked_]);
      forgotten_ = live_[leaked_];
      live_.erase(live_.begin() + static_cast<long>(leaked_));
      return;
    }
    block_bug();
  }

  void block_bug() {
    const size_t bytes = 1 + random_.below(3000), index = allocate(bytes);
    Allocation memory = live_[index];
    if (bug_ == Bug::overrun || bug_ == Bug::underrun) {
      const auto distance = static_cast<int64_t>(random_.below(64));
      memory.data[bug_ == Bug::overrun ? static_cast<int64_t>(bytes) + distance : -1 - distance] ^=
          0x81;
      return expect(bug_ == Bug::overrun ? "beyond its end" : "before its begin", memory);
    }
    give_back(index);
    if (bug_ == Bug::double_free) {
      expect("was freed before", memory);
      // The blocks allocated here may get the freed memory.
      for (size_t others = random_.below(3); others > 0; others--) allocate(bytes);
      ok(fsccl_pool_free(pool_, memory.data, nullptr));
    } else {
      expect("use after free", memory);
      memory.data[random_.below(bytes)] = static_cast<unsigned char>(random_.below(255));
    }
  }

  void finish() {
    while (!live_.empty()) give_back(live_.size() - 1);
    if (bug_ == Bug::unit_leak) ok(fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr));
    if (unit_ && bug_ != Bug::unit_leak) ok(fsccl_unit_destroy(unit_));
    if (ok(fsccl_pool_destroy(pool_))) return;
    if (bug_ == Bug::unit_leak) {
      EXPECT_OK(fsccl_unit_destroy(unit_));
    }
    if (forgotten_.data) {
      EXPECT_OK(fsccl_pool_free(pool_, forgotten_.data, nullptr));
    }
    if (forgotten_.import) std::free(forgotten_.data);
    EXPECT_OK(fsccl_pool_destroy(pool_));  // the bug was reported once, and is not again
  }

  Random random_;
  const Bug bug_;
  const fsccl_comm_t comm_;
  fsccl_pool_t pool_ = nullptr;
  fsccl_unit_t unit_ = nullptr;
  std::vector<Allocation> live_;
  Allocation forgotten_;
  size_t leaked_ = 0;
  std::string error_;
};

constexpr uint64_t kPrograms = 1000;
// Settings that make a pool cheap to create, because each program has a new one and uses little of
// it.
const std::initializer_list<std::pair<const char*, const char*>> kSmall{
    {"FSCCL_PREFAULT", "0"}, {"FSCCL_HUGE_PAGES", "off"}};

TEST(Bugs, EachOfAThousandIsNamed) {
  const Settings settings(kSmall);
  run_ranks(1, [](Rank& self) {
    std::map<Bug, int> found;
    for (uint64_t seed = 1; seed <= kPrograms && !::testing::Test::HasFailure(); seed++) {
      auto bug = static_cast<Bug>(1 + seed % (static_cast<uint64_t>(Bug::kinds) - 1));
      const bool stray =
          bug == Bug::write_after_free || bug == Bug::overrun || bug == Bug::underrun;
      if (!kStrayWrites && stray) continue;
      Program program(self.comm, seed, bug);
      const std::string error = program.run();
      const ::testing::Message which = ::testing::Message()
                                       << "seed " << seed << ", kind " << static_cast<int>(bug);
      EXPECT_THAT(error, ::testing::HasSubstr(program.expected_kind)) << which;
      EXPECT_THAT(error, ::testing::HasSubstr(program.expected_owner)) << which;
      EXPECT_FALSE(program.expected_kind.empty()) << which;
      found[bug]++;
    }
    for (const auto& [bug, times] : found) EXPECT_GE(times, 90) << static_cast<int>(bug);
  });
}

TEST(Bugs, NoneIsSeenWhereThereIsNone) {
  const Settings settings(kSmall);
  run_ranks(1, [](Rank& self) {
    for (uint64_t seed = 1; seed <= kPrograms && !::testing::Test::HasFailure(); seed++) {
      Program program(self.comm, 100'000 + seed, Bug::none);
      EXPECT_EQ(program.run(), "") << "seed " << seed;
    }
  });
}

}  // namespace
}  // namespace fsccl::testing
