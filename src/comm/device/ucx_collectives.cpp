#include "comm/device/ucx_collectives.h"

#include <algorithm>
#include <set>

#include "comm/consensus.h"

namespace fsccl {
namespace {

// A broadcast of fewer bytes takes less time as one message to each rank.
constexpr uint64_t kLongBytes = 64u << 10;
constexpr int64_t kVerdictMs = 300, kVerdictNapNs = 1'000'000;
// An address of UCX has some hundred bytes for each device of a machine.
constexpr uint64_t kMostEndpointBytes = 64u << 10;

void keep(std::vector<Exchange::Part>& parts, int peer, const std::byte* memory, uint64_t bytes) {
  if (bytes) parts.push_back({peer, const_cast<std::byte*>(memory), bytes});
}

}  // namespace

Result<std::unique_ptr<UcxCollectives>> UcxCollectives::create(Communicator& comm,
                                                               const cuda::Device& device,
                                                               std::function<Status()> broken) {
  Result<cuda::OwnedEvent> reached = cuda::OwnedEvent::create(device);
  Result<std::unique_ptr<Exchange>> by = make_exchange(comm.rank(), comm.size());
  // Every rank takes part in the two exchanges of endpoints, even if something failed on it.
  const std::vector<uint8_t> none;
  const std::vector<uint8_t>& endpoint = by.ok() ? by.value()->endpoint() : none;
  const auto ranks = static_cast<size_t>(comm.size());
  const uint64_t mine = endpoint.size();
  FSCCL_ASSIGN(const std::vector<uint64_t> sizes, all_gather(comm, mine));
  const uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest > kMostEndpointBytes)
    return fail(FSCCL_ERR_PROTOCOL, "a rank's address for UCX has {} bytes, more than {}", largest,
                kMostEndpointBytes);
  std::vector<uint8_t> padded(largest);
  std::copy(endpoint.begin(), endpoint.end(), padded.begin());
  FSCCL_ASSIGN(const std::vector<uint8_t> all, all_gather_rows(comm, padded));
  if (!by.ok()) return by.take_status();
  if (!reached.ok()) return reached.take_status();
  std::vector<std::vector<uint8_t>> endpoints;
  for (size_t rank = 0; rank < ranks; rank++) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * largest);
    endpoints.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(sizes[rank]));
  }
  std::unique_ptr<UcxCollectives> made(
      new UcxCollectives(comm, device, std::move(broken), reached.take()));
  made->by_ = by.take();
  FSCCL_TRY(made->by_->connect(endpoints));
  return made;
}

void UcxCollectives::add(const DeviceCall& call, Round& round) const {
  for (int turn = 1; turn < comm_.size(); turn++) {
    const Turn one = turn_of(call, turn, comm_.rank(), comm_.size());
    if (one.out)
      keep(round.sends, one.to, call.input + one.out->begin * call.element(),
           one.out->count * call.element());
    if (one.in)
      keep(round.receives, one.from, call.output + one.in->begin * call.element(),
           one.in->count * call.element());
  }
}

void UcxCollectives::add_long_broadcast(const DeviceCall& call, Round& scattered,
                                        Round& passed_on) const {
  const int ranks = comm_.size(), self = comm_.rank();
  const uint64_t bytes = (self == call.root ? call.sends : call.receives)[0].count * call.element();
  const uint64_t step = (bytes + static_cast<uint64_t>(ranks) - 1) / static_cast<uint64_t>(ranks);
  const auto begin = [&](int rank) { return std::min(bytes, step * static_cast<uint64_t>(rank)); };
  const auto part = [&](std::vector<Exchange::Part>& list, int peer, int whose) {
    keep(list, peer, call.output + begin(whose), begin(whose + 1) - begin(whose));
  };
  if (self != call.root) part(scattered.receives, call.root, self);
  for (int turn = 1; turn < ranks; turn++) {
    const int to = (self + turn) % ranks, from = (self + ranks - turn) % ranks;
    if (self == call.root) part(scattered.sends, to, to);
    if (to != call.root) part(passed_on.sends, to, self);
    if (self != call.root) part(passed_on.receives, from, from);
  }
}

Status UcxCollectives::copy_own(const DeviceCall& call) const {
  const Turn own = turn_of(call, 0, comm_.rank(), comm_.size());
  if (!own.out) return success();
  const auto to = reinterpret_cast<cuda::CUdeviceptr>(call.output + own.in->begin * call.element());
  const auto from =
      reinterpret_cast<cuda::CUdeviceptr>(call.input + own.out->begin * call.element());
  return device_.check(
      "cuMemcpyAsync",
      device_.driver().cuMemcpyAsync(to, from, own.out->count * call.element(), call.stream));
}

Status UcxCollectives::move(const std::vector<const DeviceCall*>& calls) {
  Round first, second;
  std::set<cuda::CUstream> streams;
  for (const DeviceCall* call : calls) {
    const bool is_long =
        call->op == OpCode::broadcast && comm_.size() > 2 &&
        (call->sends.empty() ? call->receives : call->sends)[0].count * call->element() >=
            kLongBytes;
    is_long ? add_long_broadcast(*call, first, second) : add(*call, first);
    FSCCL_TRY(copy_own(*call));
    streams.insert(call->stream);
  }
  for (const cuda::CUstream stream : streams) {
    FSCCL_TRY(reached_.record(stream));
    FSCCL_TRY(reached_.finish(Deadline::in_ms(comm_.timeout_ms()), broken_));
  }
  const Exchange::Patience patience{comm_.timeout_ms(), broken_};
  for (const Round* round : {&first, &second})
    if (!round->sends.empty() || !round->receives.empty())
      FSCCL_TRY(by_->run(round->sends, round->receives, patience));
  return success();
}

// The other ranks have begun, so an error that stops this rank stops them, too. A connection that
// broke is most likely that of a rank that died; the job will soon say so.
Status UcxCollectives::run(const std::vector<const DeviceCall*>& calls) {
  Status moved = move(calls);
  if (moved.ok()) return moved;
  const Deadline verdict = Deadline::in_ms(moved.code() == FSCCL_ERR_LINK ? kVerdictMs : 0);
  wait_until([this] { return !broken_().ok(); }, verdict, kNothingBreaks, Naps(kVerdictNapNs));
  comm_.engine().fail_all(moved.error());
  return comm_.engine().failure();
}

}  // namespace fsccl
