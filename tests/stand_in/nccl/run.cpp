// The work of operations in a stream's thread. Collectives send bytes between all ranks, and reduce
// in rank order. Like NCCL's rings they round to the type at every step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "comm.h"

namespace fsccl::stand_in_nccl {
namespace {

// True while this thread does work that does not end when the communicator is stopped: copy engines
// wait for peers' words, and symmetric kernels before 2.29 spin.
thread_local bool endless = false;
bool over(const Comm& comm) { return comm.region->broken || (comm.stopped && !endless); }

struct Transfer {
  char* memory;
  uint64_t bytes;
};

// Runs all sends and receives at the same time. Messages of two ranks stay in their order.
class Transfers {
 public:
  explicit Transfers(Comm& comm)
      : comm_(comm), out_(static_cast<size_t>(comm.ranks)), in_(static_cast<size_t>(comm.ranks)) {}
  void send(int to, const char* memory, uint64_t bytes) {
    out_[static_cast<size_t>(to)].push_back({const_cast<char*>(memory), bytes});
  }
  void receive(int from, char* memory, uint64_t bytes) {
    in_[static_cast<size_t>(from)].push_back({memory, bytes});
  }
  bool run() {
    return wait_until([this] { return advance(); }, [this] { return over(comm_); });
  }

 private:
  bool advance() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int peer = 0; peer < comm_.ranks; peer++) {
        const auto p = static_cast<size_t>(peer), self = static_cast<size_t>(comm_.rank);
        moved |= push(out_[p], comm_.region->channels[self][p]);
        moved |= pull(in_[p], comm_.region->channels[p][self]);
      }
    }
    const auto empty = [](const std::deque<Transfer>& queue) { return queue.empty(); };
    return std::all_of(out_.begin(), out_.end(), empty) &&
           std::all_of(in_.begin(), in_.end(), empty);
  }
  static bool push(std::deque<Transfer>& queue, Channel& channel) {
    const uint64_t at = channel.written, room = kChannelBytes - (at - channel.read);
    const uint64_t bytes = step(queue, room, at % kChannelBytes, [&](char* memory, uint64_t n) {
      std::memcpy(channel.bytes + at % kChannelBytes, memory, n);
    });
    channel.written += bytes;
    return bytes > 0;
  }
  static bool pull(std::deque<Transfer>& queue, Channel& channel) {
    const uint64_t at = channel.read, there = channel.written - at;
    const uint64_t bytes = step(queue, there, at % kChannelBytes, [&](char* memory, uint64_t n) {
      std::memcpy(memory, channel.bytes + at % kChannelBytes, n);
    });
    channel.read += bytes;
    return bytes > 0;
  }
  template <class Copy>
  static uint64_t step(std::deque<Transfer>& queue, uint64_t limit, uint64_t at, Copy copy) {
    while (!queue.empty() && !queue.front().bytes) queue.pop_front();
    if (queue.empty()) return 0;
    Transfer& first = queue.front();
    const uint64_t bytes = std::min({limit, first.bytes, kChannelBytes - at});
    copy(first.memory, bytes);
    first.memory += bytes;
    first.bytes -= bytes;
    if (!first.bytes) queue.pop_front();
    return bytes;
  }

  Comm& comm_;
  std::vector<std::deque<Transfer>> out_, in_;
};

// Converts 16-bit floats to fp32 and back.
struct Half {
  _Float16 value;
  float wide() const { return static_cast<float>(value); }
  static Half of(float x) { return {static_cast<_Float16>(x)}; }
};
struct Brain {
  uint16_t bits;
  float wide() const {
    const uint32_t all = uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &all, sizeof x);
    return x;
  }
  static Brain of(float x) {
    uint32_t all;
    std::memcpy(&all, &x, sizeof all);
    if (std::isnan(x)) return {static_cast<uint16_t>(all >> 16 | 64)};
    return {static_cast<uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16)};
  }
};

template <class T>
T reduce_one(int operation_kind, T a, T b) {
  switch (operation_kind) {
    case kProduct:
      return static_cast<T>(a * b);
    case kMaximum:
      return std::max(a, b);
    case kMinimum:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

template <class T>
void fold_plain(const Operation& op, const std::vector<std::vector<char>>& inputs, char* to) {
  using Wide =
      std::conditional_t<std::is_integral_v<T>,
                         std::make_unsigned<std::conditional_t<std::is_integral_v<T>, T, int>>,
                         std::type_identity<T>>::type;
  for (size_t i = 0; i < op.count; i++) {
    T sum{};
    for (size_t q = 0; q < inputs.size(); q++) {
      T value;
      std::memcpy(&value, inputs[q].data() + i * sizeof(T), sizeof value);
      if (op.operation_kind >= kMade) value = static_cast<T>(value * static_cast<T>(op.scale));
      const bool wraps =
          std::is_integral_v<T> && op.operation_kind != kMaximum && op.operation_kind != kMinimum;
      if (!q) {
        sum = value;
      } else if (wraps) {
        const uint64_t a = static_cast<uint64_t>(static_cast<Wide>(sum)),
                       b = static_cast<uint64_t>(static_cast<Wide>(value));
        sum = static_cast<T>(static_cast<Wide>(op.operation_kind == kProduct ? a * b : a + b));
      } else {
        sum = reduce_one(op.operation_kind, sum, value);
      }
    }
    if (op.operation_kind == kAverage) sum = static_cast<T>(sum / static_cast<T>(inputs.size()));
    std::memcpy(to + i * sizeof(T), &sum, sizeof sum);
  }
}

template <class T>
void fold_narrow(const Operation& op, const std::vector<std::vector<char>>& inputs, char* to) {
  for (size_t i = 0; i < op.count; i++) {
    float sum = 0;
    for (size_t q = 0; q < inputs.size(); q++) {
      T value;
      std::memcpy(&value, inputs[q].data() + i * sizeof(T), sizeof value);
      float wide = value.wide();
      if (op.operation_kind >= kMade) wide = T::of(wide * static_cast<float>(op.scale)).wide();
      sum = q ? T::of(reduce_one(op.operation_kind, sum, wide)).wide() : wide;
    }
    if (op.operation_kind == kAverage) sum /= static_cast<float>(inputs.size());
    const T result = T::of(sum);
    std::memcpy(to + i * sizeof(T), &result, sizeof result);
  }
}

void fold_all(const Operation& op, const std::vector<std::vector<char>>& inputs, char* to) {
  using Folder = void (*)(const Operation&, const std::vector<std::vector<char>>&, char*);
  static constexpr Folder kFolders[kTypes] = {
      fold_plain<int8_t>,  fold_plain<uint8_t>,  fold_plain<int32_t>, fold_plain<uint32_t>,
      fold_plain<int64_t>, fold_plain<uint64_t>, fold_narrow<Half>,   fold_plain<float>,
      fold_plain<double>,  fold_narrow<Brain>};
  kFolders[op.type](op, inputs, to);
}

class Endless {
 public:
  Endless(Comm& comm, bool is) : comm_(comm) {
    endless = is;
    comm_.endless += is;
  }
  ~Endless() {
    comm_.endless -= endless;
    endless = false;
  }

 private:
  Comm& comm_;
};

// Returns true if all ranks are about to run the same operation. Otherwise it notes a broken rule
// and returns false.
bool agreed(Comm& comm, const Operation& op) {
  const uint64_t number = ++comm.collectives;
  Announced& mine = comm.region->announced[comm.rank][number % 2];
  mine.place = op.place;
  std::snprintf(mine.text, sizeof mine.text, "%s of %zu elements of type %d, operator %d, root %d",
                name_of(op.kind), op.count, op.type, std::min<int>(op.operation_kind, kMade),
                op.root);
  mine.number = number;
  for (int q = 0; q < comm.ranks; q++) {
    const Announced& theirs = comm.region->announced[q][number % 2];
    if (!wait_until([&] { return theirs.number >= number; }, [&] { return over(comm); }))
      return false;
    std::string problem;
    if (std::strcmp(theirs.text, mine.text) != 0) {
      problem = "collective " + std::to_string(number) + ": rank " + std::to_string(comm.rank) +
                " does " + mine.text + ", rank " + std::to_string(q) + " does " + theirs.text;
    } else if (theirs.place != kNoPlace && mine.place != kNoPlace && theirs.place != mine.place) {
      problem = std::string(mine.text) +
                ": the buffers lie at other offsets of the windows on ranks " +
                std::to_string(comm.rank) + " and " + std::to_string(q);
    }
    if (problem.empty()) continue;
    if (!comm.region->broken.exchange(1)) broken(problem);
    comm.error = kInvalidUsage;
    set_last_error(problem);
    return false;
  }
  return true;
}

bool run_collective(Comm& comm, const Operation& op) {
  if (!agreed(comm, op)) return false;
  const auto ranks = static_cast<size_t>(comm.ranks), self = static_cast<size_t>(comm.rank);
  const size_t bytes = op.count * size_of(op.type);
  using Kind = Operation::Kind;
  const bool reduces =
      op.kind == Kind::reduce_scatter || op.kind == Kind::all_reduce || op.kind == Kind::reduce;
  const bool parted_in = op.kind == Kind::reduce_scatter || op.kind == Kind::all_to_all;
  const bool parted_out = op.kind == Kind::all_gather || op.kind == Kind::all_to_all;
  const auto sends_to = [&](size_t from, size_t to) {
    if (op.kind == Kind::broadcast) return static_cast<int>(from) == op.root;
    return op.kind != Kind::reduce || static_cast<int>(to) == op.root;
  };
  Transfers transfers(comm);
  std::vector<std::vector<char>> inputs(reduces && sends_to(self, self) ? ranks : 0);
  for (size_t q = 0; q < ranks; q++) {
    if (sends_to(self, q))
      transfers.send(static_cast<int>(q), op.send + (parted_in ? q * bytes : 0), bytes);
    if (!sends_to(q, self)) continue;
    char* to = op.recv + (parted_out ? q * bytes : 0);
    if (reduces) {
      inputs[q].resize(bytes);
      to = inputs[q].data();
    }
    transfers.receive(static_cast<int>(q), to, bytes);
  }
  if (!transfers.run()) return false;
  if (!inputs.empty()) fold_all(op, inputs, op.recv);
  return true;
}

}  // namespace

void run(Comm& comm, const std::vector<Operation>& operations) {
  using Kind = Operation::Kind;
  Transfers messages(comm);
  bool there_are_messages = false;
  for (const Operation& op : operations) {
    if (comm.over() && !op.endless) return;
    const Endless here(comm, op.endless);
    if (op.fails) {
      comm.error = kRemoteError;
      set_last_error("injected by FSCCL_STAND_IN_NCCL_FAIL");
    }
    if (op.hangs || op.fails) {
      (void)wait_until([] { return false; }, [&] { return over(comm); });
      return;
    }
    if (op.kind != Kind::send && op.kind != Kind::recv) {
      if (!run_collective(comm, op)) return;
      continue;
    }
    there_are_messages = true;
    if (op.kind == Kind::send)
      messages.send(op.root, op.send, op.count * size_of(op.type));
    else
      messages.receive(op.root, op.recv, op.count * size_of(op.type));
  }
  if (there_are_messages) (void)messages.run();
}

}  // namespace fsccl::stand_in_nccl
