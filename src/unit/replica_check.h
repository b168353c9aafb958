// Checks of a unit's replicas (HSDP), for units on host memory and on GPUs: the checks of requests,
// and the comparison of the replicas.
#pragma once
#include <vector>

#include "unit/unit_definition.h"

namespace fsccl {

// Returns FSCCL_ERR_INVALID_STATE ("... no replicas to `what_for`") if the unit has no replicas.
Status check_has_replicas(const UnitSpec& spec, const char* what_for);
Status check_replica_root(const UnitSpec& spec, int root);
// Checks that gradients do not accumulate on sums over the replicas. `pending` says that the last
// reduction left out the sum over the replicas.
Status check_adds_to_replicas(const UnitSpec& spec, bool accumulates, bool reduced_once,
                              bool pending);

uint64_t hash_shard(const std::byte* data, uint64_t bytes);
// Compares the replicas. `hashes` has the hash of this rank's shard of each parameter. Collective
// over shard_comm and replicate_comm, blocking. Returns FSCCL_ERR_MISMATCH on all ranks, with the
// first parameter that differs.
Status compare_replicas(const UnitSpec& spec, const std::vector<uint64_t>& hashes);

}  // namespace fsccl
