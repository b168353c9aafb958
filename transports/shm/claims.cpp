#include "transports/shm/claims.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/wait.h"
#include "transports/shm/peer_memory.h"

namespace fsccl::shm {
namespace {

constexpr size_t kAtOnce = 4u << 20;  // so many bytes are written under a claim at most
constexpr int64_t kFirstNapNs = 20'000, kLongestNapNs = 1'000'000;

uint32_t claim_on(int rank) { return static_cast<uint32_t>(rank) + 1; }

}  // namespace

Status write_under_claim(Header& header, RankBlock& own, const Owner& owner, uint64_t address,
                         const void* source, size_t bytes) {
  std::atomic_ref<uint32_t> claim(own.writes_to);
  const std::atomic_ref<uint32_t> failure_state(header.failure_state);
  for (size_t done = 0; done < bytes;) {
    const size_t now = std::min(bytes - done, kAtOnce);
    claim.store(claim_on(owner.rank), std::memory_order_seq_cst);
    const bool failed = failure_state.load(std::memory_order_seq_cst) != 0;
    const bool written = !failed && write_memory(owner.pid, address + done,
                                                 static_cast<const std::byte*>(source) + done, now,
                                                 header.failure_state);
    const int error = errno;
    // This store pairs with the load in await_claims(): a rank that sees it may use its memory.
    claim.store(0, std::memory_order_release);
    if (failed) return fail(FSCCL_ERR_LINK, "the communicator has failed");
    if (!written)
      return fail(error == ESRCH ? FSCCL_ERR_PEER_DEAD : FSCCL_ERR_LINK,
                  "cannot write {} bytes to its memory: {}; is its buffer as large as the call "
                  "says, and may it be written? (FSCCL_SINGLE_COPY=off avoids such writes)",
                  now, std::strerror(error));
    done += now;
  }
  return success();
}

bool begin_touch(Header& header, RankBlock& own) {
  std::atomic_ref<uint32_t>(own.touching).fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref<uint32_t>(header.failure_state).load(std::memory_order_seq_cst) == 0)
    return true;
  end_touch(own);
  return false;
}

void end_touch(RankBlock& own) {
  // This store pairs with the load in await_claims().
  std::atomic_ref<uint32_t>(own.touching).fetch_sub(1, std::memory_order_release);
}

void await_claims(RankBlock* blocks, int rank, const std::vector<int32_t>& pids,
                  Deadline deadline) {
  const auto at = [](uint32_t& word) {
    return std::atomic_ref<uint32_t>(word).load(std::memory_order_seq_cst);
  };
  for (int peer = 0; peer < static_cast<int>(pids.size()); peer++) {
    if (peer == rank) continue;
    const int32_t pid = pids[static_cast<size_t>(peer)];
    const bool one_process = pid == pids[static_cast<size_t>(rank)];
    const auto none = [&] {
      return at(blocks[peer].writes_to) != claim_on(rank) &&
             !(one_process && at(blocks[peer].touching));
    };
    (void)wait_until(
        none, deadline, [&] { return has_ended(pid); }, Naps(0, kFirstNapNs, kLongestNapNs));
  }
}

}  // namespace fsccl::shm
