// The table of all collectives that can be measured. The entry of a collective says which buffers
// it has and how large they are, what must be in them afterwards, and how busy a bus would be, and
// makes the call. To add a collective, add an entry (collective_table.cpp).
//
// A buffer consists of blocks, one for each rank. A block has `count` elements; in the uneven forms
// blocks have different sizes (uneven_blocks()).
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace fsccl::perf {

struct Blocks {
  std::vector<size_t> counts, displacements;  // numbers of elements, the same on all ranks
  size_t total() const { return displacements.back() + counts.back(); }
};
Blocks even_blocks(int ranks, size_t count);
// Deals out ranks * count elements 3 : 1 to even and odd ranks. (If the number of ranks is odd, the
// last one has `count`.)
Blocks uneven_blocks(int ranks, size_t count);

// How much of the blocks a buffer holds: nothing, the rank's own block, all of them, or the rank's
// own block once for each rank.
enum class Extent { kNone, kOwn, kAll, kOwnOfEach };
enum class Holder { kEveryRank, kRoot };
enum class Forms { kBoth, kInPlace, kOutOfPlace };
// The layout of a unit with one parameter that makes the same bytes appear in a slot that the ranks
// of a host share.
enum class SharedSlot { kNo, kFlat, kRow };

struct Position {
  const Blocks& blocks;
  int rank, ranks, root;
};
// The content of an output block: the elements from `first` on of the input of `writer`, or, for a
// reduction, of the inputs of all ranks.
struct Source {
  int writer;
  uint64_t first;
};
struct Call {
  const Position& place;
  const void* send;
  void* recv;
  fsccl_dtype_t dtype;
  fsccl_op_t op;
  fsccl_comm_t comm;
  size_t count() const { return place.blocks.counts[static_cast<size_t>(place.rank)]; }
};

// The traffic that a collective cannot avoid on one host, for all ranks together and for each byte
// of its size. Each rank that needs an input byte reads it, and each output byte is written; bytes
// that stay in their place cost nothing.
struct Traffic {
  double reads, writes;
};

struct CollectiveKind {
  const char* name;
  Extent input, output;
  Holder input_holder, output_holder;
  bool reduces, uneven;
  Forms forms;
  SharedSlot shared_slot;
  double (*bus_factor)(double ranks);  // nccl-tests: busbw = algbw * this
  Traffic (*traffic)(double ranks);
  Source (*source)(const Position& place, int block);
  fsccl_status_t (*call)(const Call& call);

  bool rooted() const { return input_holder == Holder::kRoot || output_holder == Holder::kRoot; }
  bool empty() const { return output == Extent::kNone; }
  // The size of nccl-tests is that of the larger buffer. If one buffer holds all blocks, it is the
  // size of all blocks, and otherwise that of one block.
  bool sized_by_all() const { return input == Extent::kAll || output == Extent::kAll; }
};
const std::vector<CollectiveKind>& collective_kinds();
const CollectiveKind* find_collective(std::string_view name);

uint64_t extent_elements(Extent extent, const Position& place);

}  // namespace fsccl::perf
