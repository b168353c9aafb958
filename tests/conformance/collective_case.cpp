#include "collective_case.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

constexpr size_t kGuardBytes = 192;
constexpr char kGuard = static_cast<char>(0xA5);
constexpr char kUnwritten = static_cast<char>(0x5A);
constexpr size_t kMostReports = 3;

}  // namespace

std::string describe(const CollectiveCase& c) {
  constexpr const char* kKinds[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                    "barrier"};
  constexpr const char* kMemories[] = {"caller", "pool", "mixed", "device"};
  return std::string(kKinds[static_cast<int>(c.kind)]) + " " + name_of(c.dtype) + " " +
         name_of(static_cast<fsccl_op_kind_t>(c.op.kind)) + " count " + std::to_string(c.count) +
         " " + kMemories[static_cast<int>(c.memory)] + (c.in_place ? " in place" : "") + " root " +
         std::to_string(c.root) + " seed " + std::to_string(c.seed);
}

Collective::Collective(const CollectiveCase& c, const Rank& self, fsccl_pool_t pool)
    : case_(c),
      self_(self),
      pool_(pool),
      size_(fsccl_dtype_size(c.dtype)),
      parts_in_(c.kind == Kind::reduce_scatter ? static_cast<size_t>(self.ranks) : 1),
      parts_out_(c.kind == Kind::all_gather ? static_cast<size_t>(self.ranks) : 1) {
  if (c.kind == Kind::barrier) return;
  if (c.memory == Memory::device) {
    std::string why;
    gpu_ = device_of_rank(self.rank, &why);
    stream_ = std::make_unique<DeviceStream>(*gpu_);
  }
  const std::vector<char> mine = input_of(self.rank);
  const size_t part = c.count * size_, own = part * static_cast<size_t>(self.rank);
  if (!c.in_place && c.kind != Kind::broadcast) {
    input_ = make_area(mine.size());
    std::copy(mine.begin(), mine.end(), input_.data);
  }
  output_ = make_area(c.in_place ? part * std::max(parts_in_, parts_out_) : part * parts_out_);
  if (c.in_place || c.kind == Kind::broadcast)
    std::copy(mine.begin(), mine.end(), output_.data + (c.kind == Kind::all_gather ? own : 0));
}

Collective::~Collective() {
  for (const Area& area : {input_, output_}) {
    if (area.pooled) {
      EXPECT_OK(fsccl_pool_free(pool_, area.block, nullptr));
    } else {
      std::free(area.block);
    }
  }
}

Collective::Area Collective::make_area(size_t bytes) {
  Area area;
  area.bytes = bytes;
  area.pooled =
      case_.memory == Memory::pool || (case_.memory == Memory::mixed &&
                                       mix(case_.seed, static_cast<uint64_t>(self_.rank)) % 2 == 0);
  const size_t all = bytes + 2 * kGuardBytes;
  void* block = nullptr;
  if (area.pooled) {
    EXPECT_OK(fsccl_pool_alloc(pool_, all, nullptr, &block));
  } else {
    block = std::aligned_alloc(64, (all + 63) / 64 * 64);
  }
  area.block = static_cast<char*>(block);
  area.data = area.block + kGuardBytes -
              (mix(case_.seed, 7) % 2 ? size_ * (1 + static_cast<size_t>(self_.rank)) : 0);
  std::fill(area.block, area.block + all, kGuard);
  std::fill(area.data, area.data + bytes, kUnwritten);
  if (gpu_) area.device = std::make_shared<DeviceBlock>(*gpu_, all);
  return area;
}

std::vector<char> Collective::input_of(int rank) const {
  if (case_.kind == Kind::broadcast && rank != case_.root)
    return std::vector<char>(case_.count * size_, kUnwritten);
  std::vector<char> bytes(case_.count * size_ * parts_in_);
  // Elements that are only moved may have any bits.
  const fsccl_dtype_t dtype = reduces() ? case_.dtype : FSCCL_UINT8;
  fill_values(dtype, bytes.data(), reduces() ? case_.count * parts_in_ : bytes.size(),
              mix(case_.seed, static_cast<uint64_t>(rank)), case_.op.kind == FSCCL_OP_PROD);
  return bytes;
}

std::vector<char> Collective::expected() const {
  const size_t part = case_.count * size_;
  if (case_.kind == Kind::broadcast) return input_of(case_.root);
  std::vector<std::vector<char>> inputs;
  for (int rank = 0; rank < self_.ranks; ++rank) inputs.push_back(input_of(rank));
  std::vector<char> result(part * parts_out_);
  if (case_.kind == Kind::all_gather) {
    for (size_t q = 0; q < inputs.size(); ++q)
      std::copy(inputs[q].begin(), inputs[q].end(),
                result.begin() + static_cast<std::ptrdiff_t>(q * part));
    return result;
  }
  std::vector<const void*> sources;
  const size_t at = case_.kind == Kind::reduce_scatter ? part * static_cast<size_t>(self_.rank) : 0;
  for (const std::vector<char>& input : inputs) sources.push_back(input.data() + at);
  reference_reduce(case_.dtype, case_.op, sources, case_.count, result.data());
  return result;
}

fsccl_status_t Collective::start(fsccl_work_t* work) {
  const CollectiveCase& c = case_;
  const size_t own = c.count * size_ * static_cast<size_t>(self_.rank);
  for (const Area* area : {&input_, &output_})
    if (area->device) area->device->put(area->block);
  char *const out = output_.operand(), *const in = input_.operand();
  void* const stream = stream_ ? stream_->get() : nullptr;
  switch (c.kind) {
    case Kind::all_gather:
      return fsccl_all_gather(c.in_place ? out + own : in, out, c.count, c.dtype, self_.comm,
                              stream, work);
    case Kind::reduce_scatter:
      return fsccl_reduce_scatter(c.in_place ? out : in, c.in_place ? out + own : out, c.count,
                                  c.dtype, c.op, self_.comm, stream, work);
    case Kind::all_reduce:
      return fsccl_all_reduce(c.in_place ? out : in, out, c.count, c.dtype, c.op, self_.comm,
                              stream, work);
    case Kind::broadcast:
      return fsccl_broadcast(out, c.count, c.dtype, c.root, self_.comm, stream, work);
    case Kind::barrier:
      break;
  }
  return fsccl_barrier(self_.comm, stream, work);
}

void Collective::check_guards(const Area& area, const char* what) const {
  if (!area.block) return;
  const char* const end = area.block + area.bytes + 2 * kGuardBytes;
  const bool whole =
      std::all_of(static_cast<const char*>(area.block), static_cast<const char*>(area.data),
                  [](char c) { return c == kGuard; }) &&
      std::all_of(static_cast<const char*>(area.data) + area.bytes, end,
                  [](char c) { return c == kGuard; });
  EXPECT_TRUE(whole) << "rank " << self_.rank << " of " << self_.ranks << ": bytes beside the "
                     << what << " of " << describe(case_) << " were written";
}

// Returns true if the order of the sum is not rank order: NCCL adds and multiplies floats of 32 and
// 64 bits in the order of its rings and trees.
bool Collective::in_any_order() const {
  const bool wide = case_.dtype == FSCCL_FLOAT32 || case_.dtype == FSCCL_FLOAT64;
  if (!stream_ || !reduces() || !wide || self_.ranks < 3 || case_.op.kind == FSCCL_OP_MIN ||
      case_.op.kind == FSCCL_OP_MAX)
    return false;
  std::vector<char> text(1 << 16);
  return fsccl_explain(self_.comm, "all_reduce", 4, text.data(), text.size()) == FSCCL_OK &&
         std::string_view(text.data()).find(R"("sums_of_wider_floats":"by NCCL)") !=
             std::string_view::npos;
}

// Returns true if two values can be results of the same sum in different orders. Each may be off by
// one rounding for every rank, of the largest partial result that values of fill_values() can have.
bool Collective::near(double got, double wanted) const {
  const double rounding = case_.dtype == FSCCL_FLOAT32 ? 0x1p-24 : 0x1p-53;
  const double largest = case_.op.kind == FSCCL_OP_PROD ? std::abs(wanted) : 0x1p8 * self_.ranks;
  return std::abs(got - wanted) <= 2 * self_.ranks * rounding * largest;
}

void Collective::check() {
  if (case_.kind == Kind::barrier) return;
  if (stream_) stream_->synchronize();
  for (const Area* area : {&input_, &output_})
    if (area->device) area->device->take(area->block);
  check_guards(input_, "input");
  check_guards(output_, "output");
  const std::vector<char> mine = input_of(self_.rank);
  if (input_.block) {
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), input_.data))
        << "rank " << self_.rank << " of " << self_.ranks << ": the input of " << describe(case_)
        << " was changed";
  }
  const std::vector<char> wanted = expected();
  const size_t own = case_.in_place && case_.kind == Kind::reduce_scatter
                         ? case_.count * size_ * static_cast<size_t>(self_.rank)
                         : 0;
  const bool any_order = in_any_order();
  size_t wrong = 0;
  for (size_t i = 0; i < case_.count * parts_out_; ++i) {
    if (agree(case_.dtype, output_.data + own, wanted.data(), i)) continue;
    if (any_order && near(load_float(case_.dtype, output_.data + own, i),
                          load_float(case_.dtype, wanted.data(), i)))
      continue;
    if (++wrong > kMostReports) continue;
    ADD_FAILURE() << "rank " << self_.rank << " of " << self_.ranks << ": element " << i << " of "
                  << describe(case_) << " is "
                  << ::testing::PrintToString(std::string(output_.data + own + i * size_, size_))
                  << ", not "
                  << ::testing::PrintToString(std::string(wanted.data() + i * size_, size_));
  }
  EXPECT_EQ(wrong, 0u) << describe(case_);
}

void run_collective(const CollectiveCase& c, const Rank& self, fsccl_pool_t pool) {
  Collective collective(c, self, pool);
  ASSERT_OK(collective.start(nullptr)) << describe(c);
  collective.check();
}

std::vector<fsccl_op_t> operators_of(fsccl_dtype_t dtype) {
  if (is_fp8(dtype)) return {};
  std::vector<fsccl_op_t> result = {FSCCL_SUM, FSCCL_AVG, FSCCL_MIN, FSCCL_MAX, FSCCL_PROD};
  if (is_float(dtype)) result.push_back(fsccl_premul_sum(0.3));
  return result;
}

CollectiveCase random_case(Random& random, int ranks, size_t most_bytes) {
  CollectiveCase c;
  c.kind = static_cast<Kind>(random.below(8) == 0 ? 4 : random.below(4));
  c.dtype = static_cast<fsccl_dtype_t>(random.below(FSCCL_DTYPE_COUNT));
  const bool reduces = c.kind == Kind::reduce_scatter || c.kind == Kind::all_reduce;
  if (reduces) {
    while (is_fp8(c.dtype)) c.dtype = static_cast<fsccl_dtype_t>(random.below(FSCCL_DTYPE_COUNT));
    const std::vector<fsccl_op_t> operators = operators_of(c.dtype);
    c.op = operators[random.below(operators.size())];
  }
  // All magnitudes are equally likely.
  const size_t most = most_bytes / fsccl_dtype_size(c.dtype);
  size_t bound = 1;
  while (bound < most && random.below(7) != 0) bound *= 4;
  c.count = random.below(std::min(bound, most) + 1);
  c.memory = static_cast<Memory>(random.below(3));
  c.in_place = random.below(2) && c.kind != Kind::broadcast && c.kind != Kind::barrier;
  c.root = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
  c.seed = random.next();
  return c;
}

}  // namespace fsccl::testing
