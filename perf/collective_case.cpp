#include "collective_case.h"

#include <algorithm>
#include <cmath>

#include "numbers.h"
#include "verify.h"

namespace fsccl::perf {
namespace {

// A short call is repeated within a sample. Then the cost of the clock does not matter, nor do the
// different times at which ranks leave the barrier. If ranks share cores, some leave a barrier a
// turn of the scheduler later than others, so a sample must be much longer.
struct Calibration {
  double short_call_us, sample_us;
};
constexpr Calibration kOwnCores{20, 40}, kSharedCores{2000, 4000};
constexpr double kMostCalls[] = {100, 1000};
// the most bytes of inputs that a sample consumes
constexpr uint64_t kMostCopiesBytes = uint64_t{32} << 20;

}  // namespace

CollectiveCase::CollectiveCase(const Session& session, const CollectivesOptions& options,
                               const CaseChoice& choice)
    : session_(session),
      options_(options),
      choice_(choice),
      element_bytes_(fsccl_dtype_size(choice.dtype)),
      place_{blocks_, session.rank(), session.ranks(), options.root} {
  const CollectiveKind& kind = *choice.kind;
  const uint64_t parts = kind.sized_by_all() ? static_cast<uint64_t>(session.ranks()) : 1;
  count_ = kind.empty() ? 0 : choice.bytes / element_bytes_ / parts;
  bytes_ = count_ * element_bytes_ * parts;
  blocks_ =
      kind.uneven ? uneven_blocks(session.ranks(), count_) : even_blocks(session.ranks(), count_);
  input_elements_ = holds(kind.input_holder) ? extent_elements(kind.input, place_) : 0;
  output_elements_ = holds(kind.output_holder) ? extent_elements(kind.output, place_) : 0;
  own_begin_bytes_ = blocks_.displacements[static_cast<size_t>(session.rank())] * element_bytes_;
}

void CollectiveCase::allocate(int copies) {
  copies_ = static_cast<uint64_t>(copies);
  shared_.reset();
  input_.reset();
  output_.reset();
  const uint64_t in = input_elements_ * element_bytes_, out = output_elements_ * element_bytes_;
  stride_ = (std::max(in, out) + 63) / 64 * 64;
  if (choice_.memory == Memory::kShared) {
    input_.emplace(session_, Memory::kCaller, in);
    const bool holds_part = choice_.kind->shared_slot == SharedSlot::kFlat || session_.rank() == 0;
    shared_.emplace(session_, choice_.kind->shared_slot, holds_part ? input_->at(0) : nullptr,
                    choice_.kind->output == Extent::kAll ? blocks_.total() : count_, choice_.dtype);
    return;
  }
  if (choice_.in_place) {
    input_.emplace(session_, choice_.memory, stride_ * copies_);
  } else {
    input_.emplace(session_, choice_.memory, in);
    output_.emplace(session_, choice_.memory, out);
  }
}

// Returns an input. In place, input and output lie in one buffer: if their extents differ, the
// smaller one is this rank's block in the larger one.
char* CollectiveCase::input(uint64_t copy) const {
  const bool inside =
      choice_.in_place && choice_.kind->input == Extent::kOwn && output_elements_ > input_elements_;
  return input_->at((choice_.in_place ? copy * stride_ : 0) + (inside ? own_begin_bytes_ : 0));
}
char* CollectiveCase::output(uint64_t copy) const {
  if (shared_) return shared_->data();
  if (output_) return output_->at(0);
  const bool inside = choice_.kind->output == Extent::kOwn && input_elements_ > output_elements_;
  return input_->at(copy * stride_ + (inside ? own_begin_bytes_ : 0));
}

void CollectiveCase::call(uint64_t copy) {
  if (shared_) return shared_->gather();
  must(choice_.kind->call(
           {place_, input(copy), output(copy), choice_.dtype, choice_.op, session_.comm()}),
       choice_.kind->name);
}

bool CollectiveCase::available() {
  if (choice_.memory == Memory::kShared) return true;
  const Blocks no_blocks = even_blocks(session_.ranks(), 0);
  const Position nowhere{no_blocks, session_.rank(), session_.ranks(), options_.root};
  char nothing[2] = "";
  return choice_.kind->call({nowhere, &nothing[0], choice_.in_place ? &nothing[0] : &nothing[1],
                             choice_.dtype, choice_.op, session_.comm()}) !=
         FSCCL_ERR_NOT_AVAILABLE;
}

CollectiveRow CollectiveCase::run() {
  const int calls = choose_calls();
  allocate(consumes_input() ? calls : 1);
  std::vector<double> times;
  uint64_t wrong = 0;
  for (int i = -options_.warmup; i < options_.iterations; i++) {
    const double time = sample(calls, ++generation_);
    if (i >= 0) times.push_back(time);
    if (options_.check) wrong += check(generation_);
  }
  times = session_.max_over_ranks(times);
  CollectiveRow result = row(times, calls, session_.sum_over_ranks(wrong));
  shared_.reset();
  return result;
}

// Writes the inputs. Each copy has its own stream of values, and each sample its own generation.
void CollectiveCase::prepare(uint32_t generation) const {
  const int32_t values_for =
      choice_.kind->reduces ? choice_.op.kind : static_cast<int32_t>(FSCCL_OP_SUM);
  for (uint64_t copy = 0; copy < copies_ && input_elements_ > 0; copy++)
    fill(input(copy), choice_.dtype, input_elements_, 0,
         seeds_of(static_cast<uint32_t>(copy), generation, static_cast<uint32_t>(session_.rank())),
         values_for);
}

uint64_t CollectiveCase::check(uint32_t generation) const {
  const CollectiveKind& kind = *choice_.kind;
  uint64_t wrong = 0;
  for (uint64_t copy = 0; copy < copies_ && output_elements_ > 0; copy++) {
    const uint32_t stream = static_cast<uint32_t>(copy);
    wrong += kind.reduces
                 ? count_wrong_reduced(output(copy), choice_.dtype, choice_.dtype, output_elements_,
                                       kind.source(place_, 0).first, stream, generation,
                                       static_cast<uint32_t>(session_.ranks()), choice_.op)
                 : check_copy(output(copy), stream, generation);
  }
  return wrong;
}

uint64_t CollectiveCase::check_copy(const char* data, uint32_t stream, uint32_t generation) const {
  const size_t own = static_cast<size_t>(session_.rank());
  const bool all = choice_.kind->output == Extent::kAll;
  uint64_t wrong = 0, at = 0;
  for (size_t block = 0; at < output_elements_; block++) {
    const uint64_t elements = blocks_.counts[all ? block : own];
    const Source source = choice_.kind->source(place_, static_cast<int>(block));
    wrong += count_wrong_copy(data + at * element_bytes_, choice_.dtype, elements, source.first,
                              seeds_of(stream, generation, static_cast<uint32_t>(source.writer)));
    at += elements;
  }
  return wrong;
}

double CollectiveCase::sample(int calls, uint32_t generation) {
  prepare(generation);
  session_.barrier();
  const double start = now_us();
  for (int i = 0; i < calls; i++) call(static_cast<uint64_t>(i) % copies_);
  const double time = (now_us() - start) / calls;
  session_.barrier();  // without it, this rank's check could take the core of a timed rank
  return time;
}

// Returns how many calls make a sample. The slowest rank's time decides, so the number is the same
// on all ranks.
int CollectiveCase::choose_calls() {
  if (options_.calls > 0 && !consumes_input()) return options_.calls;
  int calls = options_.calls;
  if (calls == 0) {
    const Calibration& rule = session_.shares_cores() ? kSharedCores : kOwnCores;
    allocate(1);
    double time = 0;
    for (int i = 0; i < 3; i++) time = sample(1, ++generation_);
    time = session_.max_over_ranks(std::vector<double>{time})[0];
    const double wanted = std::ceil(rule.sample_us / std::max(time, 0.2));
    calls = time > rule.short_call_us
                ? 1
                : static_cast<int>(std::min(kMostCalls[session_.shares_cores()], wanted));
  }
  if (consumes_input())
    calls = std::min(calls, static_cast<int>(std::max<uint64_t>(
                                1, kMostCopiesBytes / std::max<uint64_t>(1, bytes_))));
  return calls;
}

CollectiveRow CollectiveCase::row(const std::vector<double>& times, int calls,
                                  uint64_t wrong) const {
  const CollectiveKind& kind = *choice_.kind;
  CollectiveRow row;
  row.collective = kind.name;
  row.dtype = kind.empty() ? "none" : dtype_name(choice_.dtype);
  row.op = kind.reduces ? op_name(choice_.op.kind) : "none";
  row.memory = kind.empty() ? "none" : memory_name(choice_.memory);
  row.root = kind.rooted() ? options_.root : -1;
  row.bytes = bytes_;
  row.count = count_;
  row.ranks = session_.ranks();
  row.in_place = choice_.in_place;
  row.iterations = options_.iterations;
  row.calls = calls;
  row.p10_us = percentile(times, 0.10);
  row.p50_us = percentile(times, 0.50);
  row.p99_us = percentile(times, 0.99);
  // bytes / us is MB/s, and a thousandth of that GB/s
  row.algbw = row.p50_us > 0 ? static_cast<double>(bytes_) / row.p50_us * 1e-3 : 0;
  row.busbw = row.algbw * kind.bus_factor(session_.ranks());
  if (options_.check) row.wrong = wrong;
  return row;
}

}  // namespace fsccl::perf
