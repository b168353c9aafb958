// Fuzzes the claims and terms that ranks exchange before they redistribute state
// (fsccl_redistribute). Whatever other ranks claim, this rank refuses it, or knows for each pair of
// ranks which bytes of one rank's pieces go to which place in the other rank's pieces. No byte lies
// beyond these pieces, and the number of rounds is limited.
#include <algorithm>
#include <cstring>

#include "fsccl/redistribute.h"
#include "fuzz.h"
#include "redistribute/claims.h"

namespace {

using namespace fsccl;

constexpr size_t kMostRanks = 8;
constexpr int kShards = 3;

// Returns the request, which is the same on all ranks except for the shards that this rank has: the
// fuzzer chooses these.
RedistributionRequest request_of(fsccl_layout_t from, fsccl_layout_t to) {
  RedistributionRequest request;
  request.from = {from, kShards, 0};
  request.to = {to, 2, 0};
  request.params = {{{5, 3}}, {{}}, {{7}}, {{5, 3}, 0}};
  request.names = {"a", "b", "c", "d"};
  request.buffers = {{0, FSCCL_FLOAT32, nullptr, nullptr},
                     {1, FSCCL_FLOAT64, nullptr, nullptr},
                     {2, FSCCL_BFLOAT16, nullptr, nullptr}};
  return request;
}

Redistribution plan_of(const RedistributionRequest& request) {
  const auto make = [&](const fsccl_sharding_t& side) {
    Result<Layout> made = Layout::make(side.layout, request.params, side.ranks);
    FUZZ_REQUIRE(made.ok());
    return made.take();
  };
  Redistribution plan{make(request.from), make(request.to), {}, {}};
  for (const fsccl_redistributed_t& buffer : request.buffers)
    plan.buffers.push_back({buffer.param, dtype_size(buffer.dtype)});
  return plan;
}

void check_flows(const Redistribution& plan) {
  const auto ranks = static_cast<int>(plan.members.size());
  for (int giver = 0; giver < ranks; giver++)
    for (int taker = 0; taker < ranks; taker++)
      for (const Redistribution::Run& run : plan.runs(giver, taker)) {
        const Redistribution::Buffer& buffer = plan.buffers[run.buffer];
        const auto bytes = [&](const Layout& layout, int shard) {
          return layout.piece(shard, buffer.param).count * buffer.element_bytes;
        };
        FUZZ_REQUIRE(run.from + run.bytes <=
                     bytes(plan.from, plan.members[static_cast<size_t>(giver)].holds));
        FUZZ_REQUIRE(run.to + run.bytes <=
                     bytes(plan.to, plan.members[static_cast<size_t>(taker)].takes));
      }
}

void deal_out(fsccl_layout_t from, fsccl_layout_t to, const uint8_t* data, size_t bytes) {
  const RedistributionRequest request = request_of(from, to);
  Redistribution plan = plan_of(request);
  // All claims are like this rank's, except for the fields that the input changes.
  std::vector<RedistributionClaim> claims(
      std::clamp<size_t>(bytes / sizeof(RedistributionClaim), 1, kMostRanks));
  std::memcpy(claims.data(), data, std::min(bytes, claims.size() * sizeof(RedistributionClaim)));
  const RedistributionClaim own = claim_of(request);
  for (RedistributionClaim& claim : claims)
    claim.layouts ^= own.layouts, claim.params ^= own.params, claim.buffers ^= own.buffers;
  std::vector<uint64_t> hosts(claims.size());
  for (size_t rank = 0; rank < hosts.size(); rank++) hosts[rank] = rank / 2;
  const Result<uint64_t> version = agreed_version(claims, hosts, request, &plan);
  if (!version.ok()) {
    FUZZ_REQUIRE(!version.status().text().empty());
    return;
  }
  FUZZ_REQUIRE(plan.not_held().empty() && plan.not_taken().empty());
  check_flows(plan);
}

void agree(const uint8_t* data, size_t bytes) {
  constexpr uint64_t kMostRounds = 16;  // enough for this state, 64 bytes at a time
  const Redistribution plan = plan_of(request_of(FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM));
  std::vector<RedistributionTerms> terms(
      std::clamp<size_t>(bytes / sizeof(RedistributionTerms), 1, kMostRanks));
  std::memcpy(terms.data(), data, std::min(bytes, terms.size() * sizeof(RedistributionTerms)));
  const Result<RedistributionRounds> rounds = agreed_rounds(terms, plan);
  if (!rounds.ok()) return;
  const auto [part, longest] = rounds.value();
  FUZZ_REQUIRE(part >= kLeastPart && longest / part <= kMostRounds);
  for (const RedistributionTerms& its : terms)
    FUZZ_REQUIRE(part <= its.part && longest >= its.longest);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  constexpr fsccl_layout_t kLayouts[] = {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM,
                                         FSCCL_LAYOUT_RAGGED};
  if (bytes == 0) return 0;
  const uint8_t kind = data[0];
  if (kind % 4 == 0)
    agree(data + 1, bytes - 1);
  else
    deal_out(kLayouts[kind % 3], kLayouts[kind / 3 % 3], data + 1, bytes - 1);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](uint8_t kind, const auto& all) {
    seeds.push_back(
        seed_of(kind, {reinterpret_cast<const char*>(all.data()), all.size() * sizeof all[0]}));
  };
  add(0, std::vector<RedistributionTerms>{{64, 60}, {128, 0}});
  add(0, std::vector<RedistributionTerms>{{64, 60}, {64, 0}});
  std::vector<RedistributionClaim> claims(4);
  for (int rank = 0; rank < 4; rank++) {
    claims[static_cast<size_t>(rank)].version = 3;
    claims[static_cast<size_t>(rank)].holds = rank % kShards;
    claims[static_cast<size_t>(rank)].takes = rank % 2;
  }
  for (const int kind : {1, 2, 3, 5, 6, 7, 9}) add(static_cast<uint8_t>(kind), claims);
  claims[1].version = 2;
  add(1, claims);
  return seeds;
}
