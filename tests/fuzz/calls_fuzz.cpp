// Fuzzes calls of the public header, by one rank, in any order, with arguments that are right or
// wrong, and with handles of another kind or of destroyed objects. Each call returns a status, with
// a text if it is an error. None crashes or hangs, and in the end everything can be given back.
// Arguments bound the memory and time of calls. Pointers and sizes of buffers are always right,
// because the library cannot check them.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <fsccl/redistribute.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "fuzz.h"

namespace {

constexpr size_t kBufferBytes = 4096, kMostCalls = 64;
alignas(64) unsigned char buffers[4][kBufferBytes];

// The rest of an input.
class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : data_(data), left_(bytes) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() { return left_ ? (left_--, *data_++) : uint8_t{0}; }
  int below(int count) { return byte() % count; }
  bool rarely() { return byte() >= 240; }
  // Returns `right`, or now and then a number that is no valid argument.
  int number(int right) {
    static constexpr int kOdd[] = {-1, -2, 7, 99, 1 << 30, INT32_MIN, INT32_MAX};
    return rarely() ? kOdd[below(std::size(kOdd))] : right;
  }
  size_t count(size_t most) {
    static constexpr size_t kOdd[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1, size_t{1} << 63};
    return rarely() ? kOdd[below(std::size(kOdd))] : static_cast<size_t>(byte()) % (most + 1);
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Handles of one kind. Handles of destroyed objects stay in the table.
template <class Handle, size_t Places>
struct Handles {
  std::array<Handle, Places> all{};
  Handle& place(Input& input) { return all[static_cast<size_t>(input.below(Places))]; }
  Handle get(Input& input) {
    if (!input.rarely()) return place(input);
    static constexpr uint64_t kForeign[] = {
        0, 1, ~uint64_t{0}, 0x0100000100000001, 0x0200000100000002, 0xdeadbeef};
    return reinterpret_cast<Handle>(kForeign[input.below(std::size(kForeign))]);
  }
};

void expect_sense(fsccl_status_t status) {
  if (status >= 0) return;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  FUZZ_REQUIRE(fsccl_last_error(&error) == FSCCL_OK);
  FUZZ_REQUIRE(error.code == status && error.text[0] != '\0' && status != FSCCL_ERR_INTERNAL);
}

class Program {
 public:
  explicit Program(Input& input) : input_(input) {}
  ~Program() { give_all_back(); }

  void call() {
    static constexpr void (Program::* kCalls[])() = {
        &Program::make_comm,   &Program::make_pool,   &Program::make_unit,   &Program::collective,
        &Program::collective,  &Program::rooted,      &Program::unit_action, &Program::unit_action,
        &Program::pool_action, &Program::pool_action, &Program::work_action, &Program::message,
        &Program::divide,      &Program::destroy,     &Program::ask,         &Program::group,
        &Program::deal_out};
    (this->*kCalls[input_.below(std::size(kCalls))])();
  }

 private:
  fsccl_dtype_t dtype() {
    return static_cast<fsccl_dtype_t>(input_.number(input_.below(FSCCL_DTYPE_COUNT)));
  }
  fsccl_op_t op() { return {input_.number(input_.below(6)), 0, 0.5}; }
  void* buffer() { return input_.rarely() ? nullptr : buffers[input_.below(4)]; }
  size_t elements() { return input_.count(kBufferBytes / 8 / 4); }
  fsccl_work_t* work() { return input_.below(2) ? &works_.place(input_) : nullptr; }

  void make_comm() {
    fsccl_comm_t& place = comms_.place(input_);
    if (alive(place)) return;
    // The communicator failed to be created, or is still being created.
    if (place) expect_sense(fsccl_comm_destroy(std::exchange(place, nullptr)));
    fsccl_unique_id_t id{};
    expect_sense(fsccl_unique_id_create(&id));
    const bool spoilt = input_.rarely();
    if (spoilt) id.bytes[input_.byte()] ^= 1;
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = input_.number(0);
    config.ranks = input_.rarely() ? 0 : 1;
    config.timeout_ms = 50;
    if (input_.rarely()) config.size = input_.byte();
    if (input_.rarely()) config.version = input_.byte();
    config.nonblocking = input_.rarely();
    expect_sense(fsccl_comm_create(&config, input_.rarely() ? nullptr : &place));
  }
  static bool alive(fsccl_comm_t comm) {
    int size = 0;
    return fsccl_comm_size(comm, &size) == FSCCL_OK;
  }

  void make_pool() {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = 4u << 20;
    config.record = input_.below(2);
    config.dry_run = input_.rarely();
    config.debug = input_.below(8) == 0;
    if (input_.rarely()) config.size = input_.byte();
    config.memory = static_cast<fsccl_memory_t>(input_.number(0));
    fsccl_pool_t made = nullptr;
    expect_sense(fsccl_pool_create(comms_.get(input_), input_.rarely() ? nullptr : &config, &made));
    if (made && !keep(pools_, made)) expect_sense(fsccl_pool_destroy(made));
  }

  void make_unit() {
    fsccl_param_t params[3];
    const size_t count =
        input_.number(1 + input_.below(3)) == 99 ? 0 : 1 + static_cast<size_t>(input_.below(3));
    for (fsccl_param_t& param : params) {
      param = FSCCL_PARAM_INIT;
      param.dims = input_.number(1 + input_.below(2));
      for (int64_t& extent : param.shape)
        extent = input_.rarely() ? int64_t{input_.number(0)} << 33 : input_.byte();
      if (input_.rarely()) param.dtype = dtype();
      param.flags = input_.rarely() ? input_.byte() : 0;
      param.tied_to = input_.rarely() ? input_.number(0) : -1;
      param.block_rows = input_.rarely() ? input_.byte() : 0;
    }
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.layout = static_cast<fsccl_layout_t>(input_.number(input_.below(3)));
    config.shard_comm = comms_.get(input_);
    config.pool = pools_.get(input_);
    if (input_.rarely()) config.replicate_comm = comms_.get(input_);
    if (input_.rarely()) config.wire_dtype = dtype();
    if (input_.rarely()) config.reduce_dtype = dtype();
    config.sharing = static_cast<fsccl_sharing_t>(input_.number(input_.below(3)));
    config.keep = static_cast<fsccl_keep_t>(input_.number(input_.below(3)));
    config.by_parameter = input_.below(2);
    if (input_.rarely()) config.size = input_.byte();
    fsccl_unit_t made = nullptr;
    expect_sense(fsccl_unit_create(&config, input_.rarely() ? nullptr : params, count, &made));
    if (made && !keep(units_, made)) expect_sense(fsccl_unit_destroy(made));
  }

  void collective() {
    const fsccl_comm_t comm = comms_.get(input_);
    switch (input_.below(5)) {
      case 0:
        return expect_sense(
            fsccl_all_gather(buffer(), buffer(), elements(), dtype(), comm, nullptr, work()));
      case 1:
        return expect_sense(fsccl_reduce_scatter(buffer(), buffer(), elements(), dtype(), op(),
                                                 comm, nullptr, work()));
      case 2:
        return expect_sense(
            fsccl_all_reduce(buffer(), buffer(), elements(), dtype(), op(), comm, nullptr, work()));
      case 3:
        return expect_sense(
            fsccl_all_to_all(buffer(), buffer(), elements(), dtype(), comm, nullptr, work()));
      default:
        return expect_sense(fsccl_barrier(comm, input_.rarely() ? buffers[0] : nullptr, work()));
    }
  }

  void rooted() {
    const fsccl_comm_t comm = comms_.get(input_);
    const int root = input_.number(0);
    switch (input_.below(5)) {
      case 0:
        return expect_sense(
            fsccl_broadcast(buffer(), elements(), dtype(), root, comm, nullptr, work()));
      case 1:
        return expect_sense(fsccl_reduce(buffer(), buffer(), elements(), dtype(), op(), root, comm,
                                         nullptr, work()));
      case 2:
        return expect_sense(
            fsccl_gather(buffer(), buffer(), elements(), dtype(), root, comm, nullptr, work()));
      case 3:
        return expect_sense(
            fsccl_scatter(buffer(), buffer(), elements(), dtype(), root, comm, nullptr, work()));
      default: {
        const size_t counts[] = {elements()};
        const fsccl_tensor_t tensor{buffer(), buffer(), input_.rarely() ? nullptr : counts,
                                    dtype()};
        return expect_sense(fsccl_all_gather_list(&tensor, static_cast<size_t>(input_.below(2)),
                                                  comm, nullptr, work()));
      }
    }
  }

  // Redistributes a parameter of at most 15 x 15 elements, with buffers of at most 2 KiB.
  void deal_out() {
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = input_.number(2);
    param.shape[0] = input_.below(16);
    param.shape[1] = input_.below(16);
    if (input_.rarely()) param.block_rows = input_.byte(), param.block_columns = input_.byte();
    const auto side = [&]() -> fsccl_sharding_t {
      const auto layout = static_cast<fsccl_layout_t>(input_.number(input_.below(3)));
      const int ranks = input_.number(1), rank = input_.number(0);
      return {layout, ranks, rank};
    };
    fsccl_redistribute_config_t config = FSCCL_REDISTRIBUTE_CONFIG_INIT;
    config.params = input_.rarely() ? nullptr : &param;
    config.count = 1;
    config.from = side();
    config.to = side();
    config.version = input_.byte();
    config.limit_bytes = input_.count(255);
    if (input_.rarely()) config.size = input_.byte();
    const size_t odd = input_.rarely() ? SIZE_MAX : 0;
    const fsccl_redistributed_t all[] = {{odd, dtype(), buffer(), buffer()},
                                         {0, dtype(), buffer(), buffer()}};
    uint64_t version = 0;
    expect_sense(fsccl_redistribute(&config, all, static_cast<size_t>(input_.below(3)),
                                    comms_.get(input_), &version));
  }

  void unit_action() {
    const fsccl_unit_t unit = units_.get(input_);
    fsccl_view_t view{};
    const size_t index = input_.rarely() ? SIZE_MAX : static_cast<size_t>(input_.below(4));
    switch (input_.below(10)) {
      case 0:
        return expect_sense(fsccl_unit_unshard(
            unit, static_cast<fsccl_unshard_mode_t>(input_.number(input_.below(2))), nullptr,
            work()));
      case 1:
        return expect_sense(fsccl_unit_reshard(unit, nullptr));
      case 2:
        return expect_sense(fsccl_unit_param(unit, index, &view));
      case 3: {
        const fsccl_status_t status = fsccl_unit_grad(unit, index, nullptr, &view);
        expect_sense(status);
        return;
      }
      case 4:
        return expect_sense(fsccl_unit_release(unit, index, nullptr));
      case 5: {
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.accumulate = input_.below(2);
        config.defer_replicas = input_.rarely();
        if (input_.rarely()) config.first = index, config.count = input_.count(4);
        return expect_sense(
            fsccl_unit_reduce_grads(unit, input_.below(2) ? &config : nullptr, nullptr, work()));
      }
      case 6:
        return expect_sense(fsccl_unit_mark_changed(unit));
      case 7:
        return expect_sense(fsccl_unit_shard(unit, index, input_.rarely() ? nullptr : &view));
      case 8:
        return expect_sense(fsccl_unit_verify_replicas(unit));
      default:
        return expect_sense(fsccl_unit_broadcast_state(unit, input_.number(0), nullptr, work()));
    }
  }

  void pool_action() {
    const fsccl_pool_t pool = pools_.get(input_);
    void* const stream = input_.rarely() ? buffers[input_.below(4)] : nullptr;
    Block& block = blocks_[static_cast<size_t>(input_.below(static_cast<int>(blocks_.size())))];
    switch (input_.below(6)) {
      case 0: {
        if (block.live) return;
        const size_t bytes = input_.rarely() ? SIZE_MAX >> input_.below(32)
                                             : size_t{input_.byte()} << input_.below(14);
        void* pointer = nullptr;
        const fsccl_status_t status = fsccl_pool_alloc(pool, bytes, stream, &pointer);
        expect_sense(status);
        if (status == FSCCL_OK) block = {pool, pointer, true};
        return;
      }
      case 1: {
        const fsccl_status_t status =
            fsccl_pool_free(pool, input_.rarely() ? buffers[1] : block.pointer, stream);
        expect_sense(status);
        if (status == FSCCL_OK && block.pool == pool) block.live = false;
        return;
      }
      case 2:
        return expect_sense(fsccl_pool_step(pool));
      case 3: {
        const fsccl_unit_t unit = units_.get(input_);
        const fsccl_event_t events[] = {
            {static_cast<fsccl_event_kind_t>(input_.number(input_.below(5))), unit, 0, 0},
            {static_cast<fsccl_event_kind_t>(input_.below(5)), units_.get(input_), 0,
             input_.count(2)}};
        return expect_sense(
            fsccl_pool_schedule(pool, events, static_cast<size_t>(input_.below(3))));
      }
      case 4: {
        uint64_t released = 0;
        return expect_sense(fsccl_pool_trim(pool, &released));
      }
      default: {
        fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
        if (input_.rarely()) stats.size = input_.byte();
        return expect_sense(fsccl_pool_stats(pool, &stats));
      }
    }
  }

  static void done(void*, fsccl_status_t) {}
  void work_action() {
    const fsccl_work_t work = works_.get(input_);
    switch (input_.below(5)) {
      case 0:
        return expect_sense(fsccl_work_test(work));
      case 1:
        return expect_sense(fsccl_work_wait(work, input_.below(20)));
      case 2:
        return expect_sense(fsccl_work_error(work));
      case 3:
        return expect_sense(fsccl_work_callback(work, input_.rarely() ? nullptr : &done, nullptr));
      default:
        return expect_sense(fsccl_work_release(work));
    }
  }

  void message() {
    const fsccl_comm_t comm = comms_.get(input_);
    const int peer = input_.number(0), tag = input_.number(1);
    if (input_.below(8) == 7) return expect_sense(fsccl_probe(peer, comm));
    if (input_.below(2))
      return expect_sense(
          fsccl_send(buffer(), elements(), dtype(), peer, tag, comm, nullptr, work()));
    expect_sense(fsccl_recv(buffer(), elements(), dtype(), peer, tag, comm, nullptr, work()));
  }

  void divide() {
    fsccl_comm_t made = nullptr;
    const int ranks[] = {input_.number(0), input_.number(0)};
    if (input_.below(2))
      expect_sense(
          fsccl_comm_split(comms_.get(input_), input_.number(0), input_.byte(), nullptr, &made));
    else
      expect_sense(fsccl_comm_subset(comms_.get(input_), ranks, input_.count(1), input_.byte(),
                                     nullptr, &made));
    if (made && !keep(comms_, made)) expect_sense(fsccl_comm_destroy(made));
  }

  void destroy() {
    switch (input_.below(4)) {
      case 0:
        return expect_sense(fsccl_unit_destroy(units_.get(input_)));
      case 1:
        return expect_sense(fsccl_pool_destroy(pools_.get(input_)));
      case 2:
        return expect_sense(fsccl_comm_destroy(comms_.get(input_)));
      default:
        if (input_.below(4) == 0) expect_sense(fsccl_comm_abort(comms_.get(input_)));
    }
  }

  void ask() {
    const fsccl_comm_t comm = comms_.get(input_);
    int rank = 0, size = 0;
    fsccl_status_t state = FSCCL_OK;
    fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
    char text[4096];
    expect_sense(fsccl_comm_rank(comm, &rank));
    expect_sense(fsccl_comm_local_rank(comm, &rank, input_.rarely() ? nullptr : &size));
    expect_sense(fsccl_comm_async_error(comm, &state));
    expect_sense(fsccl_comm_counters(comm, &counters));
    expect_sense(fsccl_explain(comm, input_.below(2) ? "all_gather" : "none of it",
                               size_t{input_.byte()} << input_.below(20), text,
                               input_.rarely() ? 3 : sizeof text));
  }

  void group() { expect_sense(input_.below(2) ? fsccl_group_start() : fsccl_group_end()); }

  // Keeps a new handle at a place where nothing alive is.
  template <class Handle, size_t Places>
  bool keep(Handles<Handle, Places>& handles, Handle made) {
    for (Handle& place : handles.all) {
      if (still(place)) continue;
      place = made;
      return true;
    }
    return false;
  }
  static bool still(fsccl_comm_t comm) { return alive(comm); }
  static bool still(fsccl_pool_t pool) {
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    return fsccl_pool_stats(pool, &stats) == FSCCL_OK;
  }
  static bool still(fsccl_unit_t unit) {
    return fsccl_unit_mark_changed(unit) != FSCCL_ERR_INVALID_HANDLE;
  }

  void give_all_back() {
    while (fsccl_group_end() != FSCCL_ERR_INVALID_STATE) {
    }
    for (const fsccl_comm_t comm : comms_.all) (void)fsccl_comm_abort(comm);
    for (const fsccl_unit_t unit : units_.all) end(fsccl_unit_destroy(unit));
    for (const Block& block : blocks_)
      if (block.live) (void)fsccl_pool_free(block.pool, block.pointer, nullptr);
    for (const fsccl_pool_t pool : pools_.all) end(fsccl_pool_destroy(pool));
    for (const fsccl_comm_t comm : comms_.all) end(fsccl_comm_destroy(comm));
  }
  static void end(fsccl_status_t status) {
    expect_sense(status);
    FUZZ_REQUIRE(status == FSCCL_OK || status == FSCCL_ERR_INVALID_HANDLE);
  }

  struct Block {
    fsccl_pool_t pool = nullptr;
    void* pointer = nullptr;
    bool live = false;
  };
  Input& input_;
  Handles<fsccl_comm_t, 3> comms_;
  Handles<fsccl_pool_t, 3> pools_;
  Handles<fsccl_unit_t, 4> units_;
  Handles<fsccl_work_t, 4> works_;
  std::array<Block, 6> blocks_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const bool set = fsccl_config_set("FSCCL_BOOTSTRAP_TCP", "0") == FSCCL_OK &&
                          fsccl_config_set("FSCCL_TIMEOUT_MS", "50") == FSCCL_OK;
  FUZZ_REQUIRE(set);
  Input input(data, bytes);
  Program program(input);
  for (size_t calls = 0; calls < kMostCalls && !input.empty(); calls++) program.call();
  return 0;
}

// The seeds make a communicator, a pool and a unit with right arguments, and then calls on them.
// The numbers are places in the tables above.
std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const std::string comm(12, '\0'), pool = std::string(1, '\1') + std::string(10, '\0');
  std::string unit = std::string(1, '\2') + std::string(70, '\1');
  seeds.push_back(comm + pool);
  seeds.push_back(comm + pool + unit);
  for (char action = 3; action < 16; action++) {
    std::string seed = comm + pool + unit;
    for (char way = 0; way < 10; way++)
      seed += std::string(1, action) + std::string(2, '\0') + std::string(1, way) +
              std::string(9, '\0');
    seeds.push_back(seed);
  }
  return seeds;
}
