// Calls of a list, and of a group over several communicators: what NCCL takes goes first, together.
#include <algorithm>
#include <new>
#include <set>
#include <system_error>
#include <thread>

#include "comm/device/collectives.h"
#include "comm/device/nccl_collectives.h"

namespace fsccl {

Result<DeviceCollectives::Calls> DeviceCollectives::calls_of_nccl(
    std::span<const DeviceCall> calls) const {
  if (comm_.engine().failed()) return comm_.engine().failure();
  const cuda::Current current(*device_);
  Calls found;
  for (const DeviceCall& call : calls) {
    FSCCL_TRY(check_buffers(call));
    if (algorithm(call) == Algorithm::nccl) found.push_back(&call);
  }
  return found;
}

Status DeviceCollectives::run_others(std::span<const DeviceCall> calls) {
  const cuda::Current current(*device_);
  Calls exchanged;
  std::set<cuda::CUstream> followed;
  for (const DeviceCall& call : calls) {
    const Algorithm chosen = algorithm(call);
    if (chosen == Algorithm::exchanged) exchanged.push_back(&call);
    if (chosen == Algorithm::nccl || chosen == Algorithm::summed) followed.insert(call.stream);
  }
  if (!exchanged.empty()) FSCCL_TRY(move(exchanged));
  for (const DeviceCall& call : calls) {
    const Algorithm chosen = algorithm(call);
    if (chosen == Algorithm::nccl && divides(call)) FSCCL_TRY(divide(call));
    if (chosen == Algorithm::summed) FSCCL_TRY(run_exchanged_sum(call));
    if (chosen == Algorithm::staged) FSCCL_TRY(run_staged(call));
  }
  for (const cuda::CUstream stream : followed) FSCCL_TRY(follow(stream));
  return success();
}

Status DeviceCollectives::run(std::span<const DeviceCall> calls) {
  FSCCL_ASSIGN(Calls together, calls_of_nccl(calls));
  const cuda::Current current(*device_);
  if (!together.empty()) FSCCL_TRY(move(together));
  return run_others(calls);
}

// The calls of a group on one communicator and device.
struct DeviceCollectives::GroupShare {
  DeviceCollectives* on;
  int ordinal;
  std::vector<DeviceCall> calls;
  Status outcome;  // outcome so far

  void run_others() {
    if (!outcome.ok()) return;
    try {
      outcome = on->run_others(calls);
    } catch (const std::bad_alloc&) {
      outcome = fail(FSCCL_ERR_OUT_OF_MEMORY, "memory was short in a group of calls");
    }
  }
};

// Calls that wait for other ranks, each on a thread of its own, so that no communicator waits for
// another.
void DeviceCollectives::run_beside_each_other(const std::vector<GroupShare*>& waiting) {
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < waiting.size(); i++) {
    try {
      threads.emplace_back([&share = *waiting[i]] { share.run_others(); });
    } catch (const std::system_error& error) {
      waiting[i]->outcome = fail(
          FSCCL_ERR_LIMIT,
          "a group of calls needs a thread for each communicator: {}; raise the limit (ulimit -u)",
          error.what());
    }
  }
  if (!waiting.empty()) waiting[0]->run_others();
}

// The calls that NCCL takes are one group of NCCL, from this thread. Calls that wait for other
// ranks come after that; those of different communicators run beside each other.
Status DeviceCollectives::run_group(std::vector<Grouped>& group) {
  // One order on all ranks: of communicators that are new and agree, so that no two ranks wait for
  // each other, and of NCCL's calls.
  std::stable_sort(group.begin(), group.end(), [](const Grouped& a, const Grouped& b) {
    return std::pair(a.comm->members(), a.comm->tag()) <
           std::pair(b.comm->members(), b.comm->tag());
  });
  std::vector<GroupShare> shares;
  for (Grouped& one : group) {
    DeviceCollectives& on = of(*one.comm);
    if (shares.empty() || shares.back().on != &on || shares.back().ordinal != one.ordinal)
      shares.push_back({&on, one.ordinal, {}, {}});
    shares.back().calls.insert(shares.back().calls.end(), one.calls.begin(), one.calls.end());
  }
  for (const GroupShare& share : shares)
    FSCCL_TRY(share.on->check_captures(share.ordinal, share.calls));
  for (const GroupShare& share : shares) FSCCL_TRY(share.on->prepare(share.ordinal));

  // An error of one communicator keeps none of the others from the calls that their ranks wait for.
  std::vector<nccl::Communicator::Share> by_nccl;
  std::vector<GroupShare*> theirs;
  for (GroupShare& share : shares) {
    Result<Calls> calls = share.on->calls_of_nccl(share.calls);
    if (!calls.ok()) {
      share.outcome = calls.take_status();
    } else if (!calls.value().empty()) {
      by_nccl.push_back(
          {share.on->nccl_.get(), share.on->issue(*share.on->nccl_, calls.take()), {}});
      theirs.push_back(&share);
    }
  }
  if (!by_nccl.empty()) {
    const cuda::Current current(theirs[0]->on->device());  // NCCL sees to the others'
    nccl::Communicator::group(by_nccl);
  }
  for (size_t i = 0; i < by_nccl.size(); i++) theirs[i]->outcome = std::move(by_nccl[i].outcome);

  std::vector<GroupShare*> waiting;
  for (GroupShare& share : shares) {
    if (std::any_of(share.calls.begin(), share.calls.end(),
                    [&](const DeviceCall& call) { return share.on->waits(call); }))
      waiting.push_back(&share);
    else
      share.run_others();
  }
  run_beside_each_other(waiting);
  for (GroupShare& share : shares) FSCCL_TRY(std::move(share.outcome));
  return success();
}

}  // namespace fsccl
