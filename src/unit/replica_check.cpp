// Compares the replicas of a unit. Every rank hashes the bytes of its shards. The ranks of the
// replicate_comm compare their hashes, and the shard ranks exchange the results, so that every rank
// of every replica gets the same result.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "comm/consensus.h"
#include "unit/replica_check.h"

namespace fsccl {
namespace {

// The first parameter that differs from that of replica 0, and the replica on which it differs.
struct Difference {
  uint64_t param = ~uint64_t{0};
  uint64_t replica = 0;
};

}  // namespace

// Hashes in four independent chains, because in one chain each multiplication waits for the one
// before.
uint64_t hash_shard(const std::byte* data, uint64_t bytes) {
  std::array<uint64_t, 4> chains{1, 2, 3, 4};
  constexpr uint64_t kBlock = sizeof chains;
  uint64_t at = 0;
  for (; at + kBlock <= bytes; at += kBlock)
    for (size_t k = 0; k < chains.size(); k++) {
      uint64_t word;
      std::memcpy(&word, data + at + k * sizeof word, sizeof word);
      chains[k] = mix_hash(chains[k], word);
    }
  std::array<uint64_t, 4> rest{};
  if (at < bytes) std::memcpy(rest.data(), data + at, bytes - at);
  uint64_t hash = bytes;
  for (size_t k = 0; k < chains.size(); k++) hash = mix_hash(mix_hash(hash, chains[k]), rest[k]);
  return hash;
}

Status check_has_replicas(const UnitSpec& spec, const char* what_for) {
  if (spec.replicate_comm) return success();
  return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' has no replicate_comm: it has no replicas to {}",
              spec.name, what_for);
}

Status check_replica_root(const UnitSpec& spec, int root) {
  if (root >= 0 && root < spec.replicate_comm->size()) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "root {} is not a rank of the replicate_comm: they are 0 .. {}", root,
              spec.replicate_comm->size() - 1);
}

Status check_adds_to_replicas(const UnitSpec& spec, bool accumulates, bool reduced_once,
                              bool pending) {
  if (!spec.replicate_comm || !accumulates || !reduced_once || pending) return success();
  return fail(FSCCL_ERR_INVALID_STATE,
              "the sharded gradients of unit '{}' are already summed over the replicas: accumulate "
              "with defer_replicas = 1, and "
              "end with one call without it",
              spec.name);
}

Status compare_replicas(const UnitSpec& spec, const std::vector<uint64_t>& hashes) {
  const size_t count = hashes.size(), replicas = static_cast<size_t>(spec.replicate_comm->size());
  FSCCL_ASSIGN(const std::vector<uint64_t> table, all_gather_rows(*spec.replicate_comm, hashes));
  Difference mine;
  for (size_t i = count; i-- > 0;)
    for (size_t replica = replicas; replica-- > 1;)
      if (table[replica * count + i] != table[i]) mine = {i, replica};
  FSCCL_ASSIGN(const std::vector<Difference> all, all_gather(*spec.shard_comm, mine));
  const auto first =
      std::min_element(all.begin(), all.end(),
                       [](const Difference& a, const Difference& b) { return a.param < b.param; });
  if (first->param == Difference{}.param) return success();
  return fail(FSCCL_ERR_MISMATCH,
              "replicas of unit '{}' differ: parameter {} ('{}'), the shard of rank {} of "
              "shard_comm, is not on rank {} of "
              "replicate_comm what it is on rank 0. fsccl_unit_broadcast_state() makes them equal",
              spec.name, first->param, spec.params[first->param].name, first - all.begin(),
              first->replica);
}

}  // namespace fsccl
