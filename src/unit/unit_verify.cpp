// Are the replicas of a unit still the same? Every rank hashes the bytes of its shards; hashes are compared over the replicas, and
// what was found is told to the other shard ranks, so that every rank of every replica gives the same answer.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "unit/unit.h"

namespace fsccl {
namespace {

// 64 bits; four chains, because one would wait for its multiplications.
uint64_t hash_bytes(const std::byte* data, uint64_t bytes) {
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

// The first parameter that differs, and on which replica from replica 0.
struct Difference {
  uint64_t param = ~uint64_t{0};
  uint64_t replica = 0;
};

}  // namespace

Status Unit::verify_replicas() {
  if (!spec_.replicate_comm)
    return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' has no replicate_comm: it has no replicas to compare", spec_.name);
  FSCCL_TRY(check_idle());
  const auto replicas = static_cast<size_t>(spec_.replicate_comm->size());
  std::vector<uint64_t> hashes(count()), table(count() * replicas);
  for (size_t i = 0; i < count(); i++)
    hashes[i] = hash_bytes(shards_[i], layout_->piece(comm().rank(), i).count * dtype_size(spec_.params[layout_->owner(i)].dtype));
  FSCCL_TRY(gather(*spec_.replicate_comm, hashes.data(), table.data(), count() * sizeof hashes[0]));
  Difference mine;
  for (size_t i = count(); i-- > 0;)
    for (size_t replica = replicas; replica-- > 1;)
      if (table[replica * count() + i] != table[i]) mine = {i, replica};
  std::vector<Difference> all(static_cast<size_t>(comm().size()));
  FSCCL_TRY(gather(comm(), &mine, all.data(), sizeof mine));
  const auto first =
      std::min_element(all.begin(), all.end(), [](const Difference& a, const Difference& b) { return a.param < b.param; });
  if (first->param == Difference{}.param) return success();
  return fail(FSCCL_ERR_MISMATCH,
              "replicas of unit '{}' differ: parameter {} ('{}'), the shard of rank {} of shard_comm, is not on rank {} of "
              "replicate_comm what it is on rank 0. fsccl_unit_broadcast_state() makes them equal",
              spec_.name, first->param, spec_.params[first->param].name, first - all.begin(), first->replica);
}

}  // namespace fsccl
