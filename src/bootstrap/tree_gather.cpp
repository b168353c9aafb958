// The collective exchange over the tree: parts go up to the root, the whole comes down (tree.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "bootstrap/rendezvous_server.h"
#include "bootstrap/tree.h"

namespace fsccl {

Status TreeJob::all_gather(const void* mine, void* all, size_t bytes, Deadline deadline) {
  const auto ranks = static_cast<size_t>(config_.ranks);
  if (bytes > kMaxTableBytes / 2 / ranks - 16)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} bytes a rank are too much for the control tree of {} ranks", bytes, ranks);
  const std::lock_guard one_at_a_time(gather_callers_);
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kJoined && ranks == 1) {
    if (bytes > 0) std::memmove(all, mine, bytes);
    return success();
  }
  FSCCL_TRY(gather_broken());
  ++gather_.sequence;
  gather_.bytes = bytes;
  gather_.active = true;
  gather_.sent_up = false;
  gather_.result.reset();
  const auto* const first = static_cast<const uint8_t*>(mine);
  gather_.mine.assign(first, first + bytes);
  advance_gather();
  const Result<bool> given =
      wait_unless([this] { return gather_broken(); }, [this] { return gather_.result.has_value(); },
                  deadline, UntilNotified{lock, changed_});
  gather_.active = false;
  if (!given.ok()) return given.status().clone();
  if (!given.value()) {
    fail_all(fail(FSCCL_ERR_TIMEOUT,
                  "an exchange over the control tree was not over in time: rank {} {}",
                  config_.rank, gather_missing()),
             nullptr);
    return gather_broken();
  }
  const Bytes payload = std::move(*gather_.result);
  gather_.result.reset();
  FSCCL_ASSIGN(const Gathered gathered, decode_gathered(payload));
  if (gathered.sequence != gather_.sequence || gathered.data.size() != ranks * bytes) {
    fail_all(
        fail(FSCCL_ERR_PROTOCOL,
             "the result of an exchange over the control tree does not fit what rank {} asked for",
             config_.rank),
        nullptr);
    return failure_.clone();
  }
  if (bytes > 0) std::memcpy(all, gathered.data.data(), gathered.data.size());
  return success();
}

// Returns why no all-gather can succeed any more, or success. An all-gather to which every rank has
// given still succeeds: its result arrives before the news of a rank that left after it, and
// all_gather() looks for the result first.
Status TreeJob::gather_broken() const {
  if (phase_ == Phase::kLeft) return fail(FSCCL_ERR_ABORTED, "this rank has left the job");
  if (!failure_.ok()) return failure_.clone();
  if (phase_ != Phase::kJoined) return fail(FSCCL_ERR_INVALID_STATE, "the job has not been joined");
  if (lost_.empty()) return success();
  // Ranks that were lost later may have ended because of this one.
  const int32_t rank = first_lost_;
  const bool left = lost_.at(rank);
  return fail(FSCCL_ERR_PEER_DEAD, "rank {} {}", rank,
              left ? "has left" : "is dead: its connection was closed without a goodbye")
      .with_peer(config_.rank, rank);
}

std::string TreeJob::gather_missing() const {
  std::vector<int32_t> missing;
  for (const LinkPtr& link : links_)
    if (!link->is_parent && !gather_.parts.contains(link->rank)) missing.push_back(link->rank);
  if (gather_.sent_up || missing.empty()) return "has done its part, others have not";
  return fmt::format("waited for ranks {}, or ranks below them", list_ranks(missing));
}

// Returns the payload with the contributions of this rank and of all ranks below it: that of Gather
// or, at the root, that of Gathered.
Result<Bytes> TreeJob::add_up_gather() const {
  Gather sum;
  sum.sequence = gather_.sequence;
  sum.bytes = gather_.bytes;
  sum.contributions.push_back({config_.rank, gather_.mine});
  for (const auto& [child, payload] : gather_.parts) {
    FSCCL_ASSIGN(const Gather part, decode_gather(payload, config_.ranks));
    if (part.sequence != sum.sequence || part.bytes != sum.bytes)
      return fail(FSCCL_ERR_MISMATCH,
                  "exchange {} of {} bytes over the control tree on rank {} meets exchange {} of "
                  "{} bytes on rank {}",
                  sum.sequence, sum.bytes, config_.rank, part.sequence, part.bytes, child);
    sum.contributions.insert(sum.contributions.end(), part.contributions.begin(),
                             part.contributions.end());
  }
  if (config_.order != 0) return encode(sum);
  Bytes table(static_cast<size_t>(config_.ranks) * sum.bytes);
  std::vector<bool> seen(static_cast<size_t>(config_.ranks));
  for (const Gather::Contribution& one : sum.contributions) {
    const auto rank = static_cast<size_t>(one.rank);
    if (!one.data.empty())
      std::memcpy(table.data() + rank * sum.bytes, one.data.data(), one.data.size());
    seen[rank] = true;
  }
  if (sum.contributions.size() != seen.size() ||
      std::find(seen.begin(), seen.end(), false) != seen.end())
    return bad_payload("Gather");
  return encode(Gathered{sum.sequence, table});
}

void TreeJob::advance_gather() {
  if (!gather_.active || gather_.sent_up || !gather_broken().ok()) return;
  const TreeSteps::Sends sends = steps_.gave(gather_.parts.size());
  if (sends.empty()) return;
  Result<Bytes> sum = add_up_gather();
  gather_.sent_up = true;
  if (!sum.ok()) return fail_all(sum.status(), nullptr);
  gather_.parts.clear();
  perform(sends, sum.value());
  if (config_.order != 0) return;
  gather_.result = sum.take();
  changed_.notify_all();
}

}  // namespace fsccl
