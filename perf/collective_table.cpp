#include "collective_table.h"

namespace fsccl::perf {
namespace {

double one(double) { return 1; }
double none(double) { return 0; }
double others(double ranks) { return (ranks - 1) / ranks; }
double twice_others(double ranks) { return 2 * (ranks - 1) / ranks; }

// Each rank copies all blocks that it lacks, either from their owners or from one rank.
Traffic to_each(double ranks) { return {ranks - 1, ranks - 1}; }
// Each element is read from every rank once. The sum is written once, or once on each rank.
Traffic reduce_to_one(double ranks) { return {ranks, 1}; }
Traffic reduce_to_each(double ranks) { return {ranks, ranks}; }
Traffic to_one(double ranks) { return {others(ranks), others(ranks)}; }
Traffic between_all(double ranks) { return {ranks - 1, ranks - 1}; }
Traffic ring(double ranks) { return {ranks, ranks}; }
Traffic no_traffic(double) { return {0, 0}; }

uint64_t own_begin(const Position& place) {
  return place.blocks.displacements[static_cast<size_t>(place.rank)];
}
const size_t* counts(const Call& call) { return call.place.blocks.counts.data(); }
const size_t* displacements(const Call& call) { return call.place.blocks.displacements.data(); }

Source of_each(const Position&, int block) { return {block, 0}; }
Source of_root(const Position& place, int) { return {place.root, 0}; }
Source of_reduction(const Position&, int) { return {0, 0}; }
Source of_own_block(const Position& place, int) { return {0, own_begin(place)}; }
Source of_roots_block(const Position& place, int) { return {place.root, own_begin(place)}; }
Source of_each_ones_block(const Position& place, int block) { return {block, own_begin(place)}; }
Source of_previous(const Position& place, int) {
  return {(place.rank + place.ranks - 1) % place.ranks, 0};
}

// Calls the uneven all-to-all. A rank receives as many elements as its own block has from every
// rank, and stores them one behind the other.
fsccl_status_t call_all_to_all_v(const Call& call) {
  const size_t ranks = static_cast<size_t>(call.place.ranks);
  thread_local std::vector<size_t> sizes, places;  // kept, so the timed loop allocates nothing
  sizes.assign(ranks, call.count());
  places.resize(ranks);
  for (size_t q = 0; q < ranks; q++) places[q] = q * call.count();
  return fsccl_all_to_all_v(call.send, counts(call), displacements(call), call.recv, sizes.data(),
                            places.data(), call.dtype, call.comm, nullptr, nullptr);
}

// Sends to the next rank and receives from the previous one, as one operation.
fsccl_status_t call_send_recv(const Call& call) {
  constexpr int kTag = 0;
  const Position& at = call.place;
  fsccl_status_t status = fsccl_group_start();
  if (status != FSCCL_OK) return status;
  status = fsccl_send(call.send, call.count(), call.dtype, (at.rank + 1) % at.ranks, kTag,
                      call.comm, nullptr, nullptr);
  if (status >= 0)
    status = fsccl_recv(call.recv, call.count(), call.dtype, (at.rank + at.ranks - 1) % at.ranks,
                        kTag, call.comm, nullptr, nullptr);
  const fsccl_status_t ended = fsccl_group_end();
  return status < 0 ? status : ended;
}

std::vector<CollectiveKind> make_kinds() {
  using enum Extent;
  using enum Holder;
  using enum Forms;
  constexpr bool kReduces = true, kMoves = false, kUneven = true, kEven = false;
  return {
      {"all_gather", kOwn, kAll, kEveryRank, kEveryRank, kMoves, kEven, kBoth, SharedSlot::kFlat,
       others, to_each, of_each,
       [](const Call& c) {
         return fsccl_all_gather(c.send, c.recv, c.count(), c.dtype, c.comm, nullptr, nullptr);
       }},
      {"reduce_scatter", kAll, kOwn, kEveryRank, kEveryRank, kReduces, kEven, kBoth,
       SharedSlot::kNo, others, reduce_to_one, of_own_block,
       [](const Call& c) {
         return fsccl_reduce_scatter(c.send, c.recv, c.count(), c.dtype, c.op, c.comm, nullptr,
                                     nullptr);
       }},
      {"all_reduce", kOwn, kOwn, kEveryRank, kEveryRank, kReduces, kEven, kBoth, SharedSlot::kNo,
       twice_others, reduce_to_each, of_reduction,
       [](const Call& c) {
         return fsccl_all_reduce(c.send, c.recv, c.count(), c.dtype, c.op, c.comm, nullptr,
                                 nullptr);
       }},
      {"broadcast", kOwn, kOwn, kRoot, kEveryRank, kMoves, kEven, kInPlace, SharedSlot::kRow, one,
       to_each, of_root,
       [](const Call& c) {
         return fsccl_broadcast(c.recv, c.count(), c.dtype, c.place.root, c.comm, nullptr, nullptr);
       }},
      {"reduce", kOwn, kOwn, kEveryRank, kRoot, kReduces, kEven, kBoth, SharedSlot::kNo, one,
       reduce_to_one, of_reduction,
       [](const Call& c) {
         return fsccl_reduce(c.send, c.recv, c.count(), c.dtype, c.op, c.place.root, c.comm,
                             nullptr, nullptr);
       }},
      {"gather", kOwn, kAll, kEveryRank, kRoot, kMoves, kEven, kBoth, SharedSlot::kNo, others,
       to_one, of_each,
       [](const Call& c) {
         return fsccl_gather(c.send, c.recv, c.count(), c.dtype, c.place.root, c.comm, nullptr,
                             nullptr);
       }},
      {"scatter", kAll, kOwn, kRoot, kEveryRank, kMoves, kEven, kBoth, SharedSlot::kNo, others,
       to_one, of_roots_block,
       [](const Call& c) {
         return fsccl_scatter(c.send, c.recv, c.count(), c.dtype, c.place.root, c.comm, nullptr,
                              nullptr);
       }},
      {"all_to_all", kAll, kAll, kEveryRank, kEveryRank, kMoves, kEven, kOutOfPlace,
       SharedSlot::kNo, others, between_all, of_each_ones_block,
       [](const Call& c) {
         return fsccl_all_to_all(c.send, c.recv, c.count(), c.dtype, c.comm, nullptr, nullptr);
       }},
      {"send_recv", kOwn, kOwn, kEveryRank, kEveryRank, kMoves, kEven, kOutOfPlace, SharedSlot::kNo,
       one, ring, of_previous, call_send_recv},
      {"all_gather_v", kOwn, kAll, kEveryRank, kEveryRank, kMoves, kUneven, kBoth, SharedSlot::kNo,
       others, to_each, of_each,
       [](const Call& c) {
         return fsccl_all_gather_v(c.send, c.recv, counts(c), displacements(c), c.dtype, c.comm,
                                   nullptr, nullptr);
       }},
      {"reduce_scatter_v", kAll, kOwn, kEveryRank, kEveryRank, kReduces, kUneven, kBoth,
       SharedSlot::kNo, others, reduce_to_one, of_own_block,
       [](const Call& c) {
         return fsccl_reduce_scatter_v(c.send, c.recv, counts(c), c.dtype, c.op, c.comm, nullptr,
                                       nullptr);
       }},
      {"all_to_all_v", kAll, kOwnOfEach, kEveryRank, kEveryRank, kMoves, kUneven, kOutOfPlace,
       SharedSlot::kNo, others, between_all, of_each_ones_block, call_all_to_all_v},
      {"barrier", kNone, kNone, kEveryRank, kEveryRank, kMoves, kEven, kOutOfPlace, SharedSlot::kNo,
       none, no_traffic, of_each,
       [](const Call& c) { return fsccl_barrier(c.comm, nullptr, nullptr); }},
  };
}

Blocks end_to_end(std::vector<size_t> counts) {
  Blocks blocks{std::move(counts), {}};
  size_t at = 0;
  for (const size_t count : blocks.counts) {
    blocks.displacements.push_back(at);
    at += count;
  }
  return blocks;
}

}  // namespace

Blocks even_blocks(int ranks, size_t count) {
  return end_to_end(std::vector<size_t>(static_cast<size_t>(ranks), count));
}

Blocks uneven_blocks(int ranks, size_t count) {
  std::vector<size_t> counts(static_cast<size_t>(ranks), count);
  for (size_t q = 0; q + 1 < counts.size(); q += 2) {
    counts[q] += count / 2;
    counts[q + 1] -= count / 2;
  }
  return end_to_end(std::move(counts));
}

const std::vector<CollectiveKind>& collective_kinds() {
  static const std::vector<CollectiveKind> kinds = make_kinds();
  return kinds;
}

const CollectiveKind* find_collective(std::string_view name) {
  for (const CollectiveKind& kind : collective_kinds())
    if (name == kind.name) return &kind;
  return nullptr;
}

uint64_t extent_elements(Extent extent, const Position& place) {
  const uint64_t own = place.blocks.counts[static_cast<size_t>(place.rank)];
  switch (extent) {
    case Extent::kNone:
      return 0;
    case Extent::kOwn:
      return own;
    case Extent::kAll:
      return place.blocks.total();
    case Extent::kOwnOfEach:
      return own * static_cast<uint64_t>(place.ranks);
  }
  return 0;
}

}  // namespace fsccl::perf
