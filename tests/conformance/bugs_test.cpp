// Debug mode of pools against random programs: blocks on streams, imports and a unit's gradients,
// taken, used and given back in a right order. Each of a thousand programs gets exactly one bug,
// and the first error must name it: its kind, and whose memory it is. A thousand programs without a
// bug must run without a word. The content of memory is checked throughout.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

// With the address sanitizer, a stray write ends the program at once: faults_test.cpp.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kStrayWrites = false;
#else
constexpr bool kStrayWrites = true;
#endif

constexpr size_t kStreams = 5;  // the program's own among them
constexpr size_t kPage = 4096;
using Clock = std::array<uint64_t, kStreams>;

enum class Bug {
  none,
  double_free,
  write_after_free,
  use_after_free,
  no_order,
  overrun,
  underrun,
  leak,
  import_in_use,
  slot_overrun,
  slot_underrun,
  unit_leak,
  kinds
};

void* stream_of(size_t s) {
  static char names[kStreams];
  return s == 0 ? nullptr : &names[s];
}

// A model of the documented order: `known` is the work that is over before the next work of a
// stream begins.
class Model {
 public:
  size_t events = 0;
  uint64_t work(size_t s) { return s == 0 ? 0 : ++known_[s][s]; }
  void order(size_t before, size_t after) {  // an event on the one that the other waits for
    for (size_t s = 0; s < kStreams; s++)
      known_[after][s] = std::max(known_[after][s], known_[before][s]);
    if (after != 0) return;
    for (Clock& clock : known_)
      for (size_t s = 0; s < kStreams; s++) clock[s] = std::max(clock[s], known_[0][s]);
  }
  bool knows(size_t stream, size_t other, uint64_t clock) const {
    return clock <= known_[stream][other];
  }

 private:
  std::array<Clock, kStreams> known_{};
};

struct Memory {
  unsigned char* data = nullptr;
  size_t bytes = 0;
  bool import = false;
  std::vector<unsigned char> contents;
  Clock reads{}, writes{};  // the last on each stream
};

class Program {
 public:
  Program(fsccl_comm_t comm, uint64_t seed, Bug bug) : random_(seed), bug_(bug), comm_(comm) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.debug = 1;
    EXPECT_OK(fsccl_pool_create(comm, &config, &pool_));
  }

  // The first error's text; empty when there was none.
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
    switch (random_.below(8)) {
      case 0:
      case 1:
        allocate(random_.below(kStreams));
        break;
      case 2:
        if (!live_.empty()) give_back(random_.below(live_.size()), random_.below(kStreams));
        break;
      case 3:
        order(random_.below(kStreams), random_.below(kStreams));
        break;
      case 4:
        if (unit_) reduce();
        break;
      case 5:
        if (random_.below(8) == 0) import();
        break;
      default:
        if (!live_.empty()) use(live_[random_.below(live_.size())], random_.below(kStreams));
    }
  }

  size_t allocate(size_t stream, size_t bytes = ~size_t{0}) {
    if (bytes == ~size_t{0})
      bytes = random_.below(10) == 0 ? 65536 + random_.below(20000) : random_.below(3000);
    Memory memory;
    void* pointer = nullptr;
    if (!ok(fsccl_pool_alloc(pool_, bytes, stream_of(stream), &pointer))) return ~size_t{0};
    memory.data = static_cast<unsigned char*>(pointer);
    memory.bytes = bytes;
    memory.writes[stream] = model_.work(stream);
    const size_t alignment = bytes >= 65536 ? kPage : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % alignment, 0u);
    fill(memory, 0, bytes);
    live_.push_back(std::move(memory));
    return live_.size() - 1;
  }

  size_t import() {
    Memory memory;
    memory.bytes = (1 + random_.below(3)) * kPage;
    memory.data = static_cast<unsigned char*>(std::aligned_alloc(kPage, memory.bytes));
    memory.import = true;
    fill(memory, 0, memory.bytes);
    if (!ok(fsccl_pool_import(pool_, memory.data, memory.bytes))) return ~size_t{0};
    live_.push_back(std::move(memory));
    return live_.size() - 1;
  }

  void fill(Memory& memory, size_t begin, size_t end) {
    memory.contents.resize(memory.bytes);
    const auto value = static_cast<unsigned char>(random_.next());
    std::fill(memory.contents.begin() + static_cast<long>(begin),
              memory.contents.begin() + static_cast<long>(end), value);
    if (end > begin) std::memset(memory.data + begin, value, end - begin);
  }

  // Work that the stream does at once, which is one of the orders that it may have.
  void use(Memory& memory, size_t stream) {
    if (memory.bytes == 0) return;
    const bool writes = random_.below(2) == 0;
    for (size_t other = 0; other < kStreams; other++)
      if (!model_.knows(stream, other, memory.writes[other]) ||
          (writes && !model_.knows(stream, other, memory.reads[other])))
        order(other, stream);
    const size_t begin = random_.below(memory.bytes),
                 end = begin + 1 + random_.below(memory.bytes - begin);
    declare(memory, begin, end, stream, writes);
    if (writes) fill(memory, begin, end);
    EXPECT_EQ(std::memcmp(memory.data, memory.contents.data(), memory.bytes), 0);
  }
  void declare(Memory& memory, size_t begin, size_t end, size_t stream, bool writes) {
    (writes ? memory.writes : memory.reads)[stream] = model_.work(stream);
    ok(fsccl_pool_use(pool_, memory.data + begin, end - begin, stream_of(stream), writes));
  }

  void order(size_t before, size_t after) {
    if (before == after) return;
    static char events[16];
    const void* event = &events[model_.events++ % 16];
    ok(fsccl_pool_record(pool_, event, stream_of(before)));
    ok(fsccl_pool_wait(pool_, event, stream_of(after)));
    model_.order(before, after);
  }
  void wait_for_all() {
    for (size_t s = 1; s < kStreams; s++) order(s, 0);
  }

  void give_back(size_t index, size_t stream) {
    Memory memory = std::move(live_[index]);
    live_.erase(live_.begin() + static_cast<long>(index));
    if (memory.import) wait_for_all();
    EXPECT_TRUE(std::equal(memory.contents.begin(), memory.contents.end(), memory.data));
    ok(fsccl_pool_free(pool_, memory.data, stream_of(stream)));
    model_.work(stream);
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
  // A step of the unit, with a byte of this distance from its gradients written: at or behind the
  // end, or before the begin.
  void reduce(int64_t stray = 0, bool beyond = false) {
    if (!ok(fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr))) return;
    fsccl_view_t view{};
    ok(fsccl_unit_grad(unit_, 0, &view));
    auto* grads = static_cast<unsigned char*>(view.data);
    const auto bytes = static_cast<int64_t>(view.count * fsccl_dtype_size(view.dtype));
    std::memset(grads, 0, static_cast<size_t>(bytes));
    if (beyond) grads[stray < 0 ? stray : bytes + stray] ^= 0x5a;
    ok(fsccl_unit_reshard(unit_));
    if (!ok(fsccl_unit_reduce_grads(unit_, nullptr, nullptr)))
      ok(fsccl_unit_reduce_grads(unit_, nullptr, nullptr));
    ok(fsccl_pool_step(pool_));
  }

  void expect(const char* kind, const Memory& memory) {
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
    if (bug_ == Bug::leak || bug_ == Bug::import_in_use) {
      leaked_ = bug_ == Bug::import_in_use || random_.below(3) == 0
                    ? import()
                    : allocate(random_.below(kStreams));
      expect(bug_ == Bug::leak ? "still has" : "no order between streams", live_[leaked_]);
      Memory memory = live_[leaked_];
      live_.erase(live_.begin() + static_cast<long>(leaked_));
      forgotten_ = memory;
      if (bug_ == Bug::leak) return;
      declare(memory, 0, memory.bytes, 1 + random_.below(kStreams - 1), random_.below(2) == 0);
      ok(fsccl_pool_free(pool_, memory.data, nullptr));
      return;
    }
    block_bug();
  }

  void block_bug() {
    const size_t bytes = 1 + random_.below(3000), index = allocate(0, bytes);
    Memory memory = live_[index];
    if (bug_ == Bug::no_order) {
      const size_t first = 1 + random_.below(kStreams - 1),
                   second = (first + 1 + random_.below(kStreams - 1)) % kStreams;
      declare(memory, 0, bytes, first, true);
      expect("no order between streams", memory);
      return declare(memory, random_.below(bytes), bytes, second, random_.below(2) == 0);
    }
    if (bug_ == Bug::overrun || bug_ == Bug::underrun) {
      const auto distance = static_cast<int64_t>(random_.below(64));
      memory.data[bug_ == Bug::overrun ? static_cast<int64_t>(bytes) + distance : -1 - distance] ^=
          0x81;
      return expect(bug_ == Bug::overrun ? "beyond its end" : "before its begin", memory);
    }
    const size_t stream = random_.below(kStreams);
    give_back(index, stream);
    if (bug_ == Bug::double_free) {
      expect("was freed before", memory);
      // which may have the same bytes
      for (size_t others = random_.below(3); others > 0; others--) allocate(0, bytes);
      ok(fsccl_pool_free(pool_, memory.data, stream_of(random_.below(kStreams))));
    } else if (bug_ == Bug::use_after_free) {
      expect("use after free", memory);
      ok(fsccl_pool_use(pool_, memory.data + random_.below(bytes), 1,
                        stream_of(random_.below(kStreams)), random_.below(2) == 0));
    } else {
      wait_for_all();  // before that the bytes are the streams'
      expect("use after free", memory);
      memory.data[random_.below(bytes)] = static_cast<unsigned char>(random_.below(255));
    }
  }

  void finish() {
    while (!live_.empty()) give_back(live_.size() - 1, random_.below(kStreams));
    wait_for_all();
    if (bug_ == Bug::unit_leak) ok(fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr));
    if (unit_ && bug_ != Bug::unit_leak) ok(fsccl_unit_destroy(unit_));
    if (ok(fsccl_pool_destroy(pool_))) return;
    if (bug_ == Bug::unit_leak) {
      EXPECT_OK(fsccl_unit_destroy(unit_));
    }
    if (forgotten_.data) {
      EXPECT_OK(fsccl_pool_free(pool_, forgotten_.data, nullptr));
    }
    if (forgotten_.import) std::free(forgotten_.data);
    EXPECT_OK(fsccl_pool_destroy(pool_));  // it was said once
  }

  Random random_;
  const Bug bug_;
  const fsccl_comm_t comm_;
  fsccl_pool_t pool_ = nullptr;
  fsccl_unit_t unit_ = nullptr;
  Model model_;
  std::vector<Memory> live_;
  Memory forgotten_;
  size_t leaked_ = 0;
  std::string error_;
};

constexpr uint64_t kPrograms = 1000;
// Each has a pool, of which it uses little.
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
