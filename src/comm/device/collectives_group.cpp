// Runs the calls of a list, and of a group over several communicators. The calls that NCCL takes
// come first, together.
#include <algorithm>
#include <array>
#include <new>
#include <set>
#include <thread>

#include "base/undo.h"
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

// Returns the streams on which work of NCCL waits for other ranks.
std::set<cuda::CUstream> DeviceCollectives::streams_of(const std::vector<Planned>& calls) {
  std::set<cuda::CUstream> streams;
  for (const Planned& one : calls) {
    const NativeAlgorithm first = one.kept->plan.natives.front().by;
    if (first == NativeAlgorithm::nccl || first == NativeAlgorithm::summed)
      streams.insert(one.call->stream);
  }
  return streams;
}

// Runs act(), within a chain, and follows the streams. If this ends early, the streams are followed
// nevertheless: what act() has put on them waits for other ranks, and would wait for ever after a
// failure.
Status DeviceCollectives::run_followed(const std::set<cuda::CUstream>& streams,
                                       FunctionRef<Status()> act) {
  Undo ended_early([&] {
    for (const cuda::CUstream stream : streams) (void)follow(stream).ok();
  });
  FSCCL_TRY(act());
  for (const cuda::CUstream stream : streams) FSCCL_TRY(follow(stream));
  ended_early.keep();
  return success();
}

// Runs what is left of the calls of one communicator. The chain has begun once another rank counts
// on one of them.
Status DeviceCollectives::run_others(const std::vector<Planned>& calls, Chain& chain) {
  const cuda::Current current(*device_);
  Calls exchanged;
  for (const Planned& one : calls) {
    if (one.kept->plan.natives.front().by != NativeAlgorithm::exchanged) continue;
    record(one, NativeAlgorithm::exchanged);
    exchanged.push_back(one.call);
  }
  if (!exchanged.empty()) {
    chain.begin();
    FSCCL_TRY(move(exchanged));
  }
  for (const Planned& one : calls)
    for (const Step& step : one.kept->plan.steps) {
      FSCCL_TRY(run_step(one, step));
      chain.begin();
    }
  return success();
}

Status DeviceCollectives::run(std::span<const DeviceCall> calls) {
  FSCCL_ASSIGN(const std::vector<Planned> planned, plan_calls(calls));
  const cuda::Current current(*device_);
  const Calls together = calls_of_nccl(planned);
  const std::set<cuda::CUstream> streams = streams_of(planned);
  Chain chain;
  return chain.run(std::array{&comm_.engine()}, [&] {
    return run_followed(streams, [&]() -> Status {
      if (!together.empty()) {
        FSCCL_TRY(move(together));
        chain.begin();
      }
      return run_others(planned, chain);
    });
  });
}

// The calls of a group on one communicator and device.
struct DeviceCollectives::GroupShare {
  DeviceCollectives* on;
  int ordinal;
  std::vector<DeviceCall> calls;
  Status outcome;  // outcome so far
  std::vector<Planned> planned;
  std::set<cuda::CUstream> streams;
  Chain chain;

  void run_others() {
    if (!outcome.ok()) return;
    try {
      const cuda::Current current(*on->device_);
      outcome = chain.run(std::array{&on->comm_.engine()}, [this] {
        return on->run_followed(streams, [this] { return on->run_others(planned, chain); });
      });
    } catch (const std::bad_alloc&) {
      outcome = fail(FSCCL_ERR_OUT_OF_MEMORY, "memory was short in a group of calls");
    }
  }
};

// Runs calls that wait for other ranks, each on a thread of its own, so that no communicator waits
// for another. Calls for which there is no thread run here, one after the other: all ranks have
// them in the same order, so no two ranks wait for each other.
void DeviceCollectives::run_beside_each_other(const std::vector<GroupShare*>& waiting) {
  std::vector<std::jthread> threads;
  const size_t end = waiting.size();
  size_t without = 1;  // the first call without a thread, apart from call 0
  try {
    threads.reserve(end);
    for (; without < end; without++)
      threads.emplace_back([&share = *waiting[without]] { share.run_others(); });
  } catch (const std::exception&) {  // no memory, or no thread (ulimit -u)
  }
  if (end > 0) waiting[0]->run_others();
  for (; without < end; without++) waiting[without]->run_others();
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
    const auto same = [&](const GroupShare& share) {
      return share.on == &on && share.ordinal == one.ordinal;
    };
    auto share = std::find_if(shares.begin(), shares.end(), same);
    if (share == shares.end()) {
      shares.push_back({.on = &on, .ordinal = one.ordinal});
      share = std::prev(shares.end());
    }
    share->calls.insert(share->calls.end(), one.calls.begin(), one.calls.end());
  }
  for (const GroupShare& share : shares)
    FSCCL_TRY(share.on->check_captures(share.ordinal, share.calls));
  // An error of one communicator must not keep the others from calls for which their ranks wait.
  for (GroupShare& share : shares) share.outcome = share.on->prepare(share.ordinal);
  std::vector<nccl::Communicator::Share> by_nccl;
  std::vector<GroupShare*> theirs;
  for (GroupShare& share : shares) {
    if (!share.outcome.ok()) continue;
    Result<std::vector<Planned>> planned = share.on->plan_calls(share.calls);
    if (!planned.ok()) {
      share.outcome = planned.take_status();
      continue;
    }
    share.planned = planned.take();
    share.streams = streams_of(share.planned);
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
