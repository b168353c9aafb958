// Runs the calls of a list, and of a group over several communicators. The calls that NCCL takes
// come first, together.
#include <algorithm>
#include <array>
#include <new>
#include <set>
#include <system_error>
#include <thread>

#include "comm/device/collectives.h"
#include "comm/device/nccl_collectives.h"

namespace fsccl {

DeviceCollectives::Calls DeviceCollectives::calls_of_nccl(const std::vector<Planned>& calls) const {
  Calls found;
  for (const Planned& one : calls) {
    if (one.kept->plan.natives.front().by != NativeAlgorithm::nccl) continue;
    record(one, NativeAlgorithm::nccl);
    found.push_back(one.call);
  }
  return found;
}

// Runs a step that no other call shares. The first steps of plans that NCCL or UCX begins were
// carried out together with those of other calls.
Status DeviceCollectives::run_step(const Planned& one, const Step& step) {
  if (step.kind == StepKind::divide) return divide(*one.call);
  const NativeAlgorithm by = one.kept->plan.natives[step.tick].by;
  const bool moves = by == NativeAlgorithm::nccl || by == NativeAlgorithm::exchanged;
  if (moves && step.tick == 0) return success();
  record(one, by);
  if (by == NativeAlgorithm::staged) return run_staged(*one.call);
  const DeviceCall call = call_of(one, step);
  return moves ? move({&call}) : run_exchanged_sum(call);
}

// Runs what is left of the calls of one communicator. The chain has begun once another rank counts
// on one of them.
Status DeviceCollectives::run_others(const std::vector<Planned>& calls, Chain& chain) {
  const cuda::Current current(*device_);
  Calls exchanged;
  std::set<cuda::CUstream> followed;
  for (const Planned& one : calls) {
    const NativeAlgorithm first = one.kept->plan.natives.front().by;
    if (first == NativeAlgorithm::exchanged) {
      record(one, first);
      exchanged.push_back(one.call);
    }
    if (first == NativeAlgorithm::nccl || first == NativeAlgorithm::summed)
      followed.insert(one.call->stream);
  }
  if (!exchanged.empty()) {
    FSCCL_TRY(move(exchanged));
    chain.begin();
  }
  for (const Planned& one : calls)
    for (const Step& step : one.kept->plan.steps) {
      FSCCL_TRY(run_step(one, step));
      chain.begin();
    }
  for (const cuda::CUstream stream : followed) FSCCL_TRY(follow(stream));
  return success();
}

Status DeviceCollectives::run(std::span<const DeviceCall> calls) {
  FSCCL_ASSIGN(const std::vector<Planned> planned, plan_calls(calls));
  const cuda::Current current(*device_);
  Chain chain;
  return chain.run(std::array{&comm_.engine()}, [&]() -> Status {
    if (const Calls together = calls_of_nccl(planned); !together.empty()) {
      FSCCL_TRY(move(together));
      chain.begin();
    }
    return run_others(planned, chain);
  });
}

// The calls of a group on one communicator and device.
struct DeviceCollectives::GroupShare {
  DeviceCollectives* on;
  int ordinal;
  std::vector<DeviceCall> calls;
  Status outcome;  // outcome so far
  std::vector<Planned> planned;
  Chain chain;

  void run_others() {
    if (!outcome.ok()) return;
    try {
      outcome = chain.run(std::array{&on->comm_.engine()},
                          [this] { return on->run_others(planned, chain); });
    } catch (const std::bad_alloc&) {
      outcome = fail(FSCCL_ERR_OUT_OF_MEMORY, "memory was short in a group of calls");
    }
  }
};

// Runs calls that wait for other ranks, each on a thread of its own, so that no communicator waits
// for another.
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

// Runs a group. The calls that NCCL takes are one group of NCCL, from this thread. Calls that wait
// for other ranks follow; those of different communicators run at the same time.
Status DeviceCollectives::run_group(std::vector<Grouped>& group) {
  // All ranks use one order, in which new communicators agree and in which NCCL gets its calls. So
  // no two ranks wait for each other.
  std::stable_sort(group.begin(), group.end(), [](const Grouped& a, const Grouped& b) {
    return std::pair(a.comm->members(), a.comm->tag()) <
           std::pair(b.comm->members(), b.comm->tag());
  });
  std::vector<GroupShare> shares;
  for (Grouped& one : group) {
    DeviceCollectives& on = of(*one.comm);
    if (shares.empty() || shares.back().on != &on || shares.back().ordinal != one.ordinal)
      shares.push_back({.on = &on, .ordinal = one.ordinal});
    shares.back().calls.insert(shares.back().calls.end(), one.calls.begin(), one.calls.end());
  }
  for (const GroupShare& share : shares)
    FSCCL_TRY(share.on->check_captures(share.ordinal, share.calls));
  for (const GroupShare& share : shares) FSCCL_TRY(share.on->prepare(share.ordinal));

  // An error of one communicator must not keep the others from calls for which their ranks wait.
  std::vector<nccl::Communicator::Share> by_nccl;
  std::vector<GroupShare*> theirs;
  for (GroupShare& share : shares) {
    Result<std::vector<Planned>> planned = share.on->plan_calls(share.calls);
    if (!planned.ok()) {
      share.outcome = planned.take_status();
      continue;
    }
    share.planned = planned.take();
    Calls calls = share.on->calls_of_nccl(share.planned);
    if (calls.empty()) continue;
    by_nccl.push_back(
        {share.on->nccl_.get(), share.on->issue(*share.on->nccl_, std::move(calls)), {}});
    theirs.push_back(&share);
  }
  if (!by_nccl.empty()) {
    const cuda::Current current(theirs[0]->on->device());  // NCCL makes the others current itself
    nccl::Communicator::group(by_nccl);
  }
  for (size_t i = 0; i < by_nccl.size(); i++) {
    theirs[i]->outcome = std::move(by_nccl[i].outcome);
    theirs[i]->chain.begin();
  }

  std::vector<GroupShare*> waiting;
  for (GroupShare& share : shares) {
    if (std::any_of(share.planned.begin(), share.planned.end(),
                    [&](const Planned& one) { return share.on->waits(one); }))
      waiting.push_back(&share);
    else
      share.run_others();
  }
  run_beside_each_other(waiting);
  for (GroupShare& share : shares) FSCCL_TRY(std::move(share.outcome));
  return success();
}

}  // namespace fsccl
