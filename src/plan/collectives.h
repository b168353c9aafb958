// The builders of the plain collectives, one algorithm a file. A collective that only moves bytes
// is a DataMovement (which rank sends what to which), and a collective that reduces is a
// ReductionShape (which rank reduces which part, and who gets the result). The algorithms know
// nothing else of the collective:
//
//   ..._inline   the payload travels in the signals: tiny calls, one exchange
//   ..._slots    through the slots of the channel, in rounds: small calls (one exchange), and
//                memory that peers cannot touch
//   ..._steps    between hosts, through slots, to a few ranks at a time that pass it on: small
//                calls of many ranks
//   ..._direct   from and to peers' buffers where they are: each byte is moved once; not where
//                slots are mirrored
//
// All algorithms are also right when a rank passes input and output that are the same memory, as
// far as the public header allows it: a copy from a place to itself is skipped.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace fsccl {

// The caller's request. Counts are in elements, as in the public header.
struct Shape {
  int rank = 0;
  int ranks = 1;
  uint64_t count = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  int root = 0;
  uint64_t slot_bytes = 32768;
  bool mirrored = false;  // slots are (plan.h); as in DataMovement and ReductionShape
  // The v forms: the part of each rank, and where it lies in the larger buffer. Empty: `count`
  // each, end to end.
  std::vector<uint64_t> counts, displacements;

  struct Part {
    uint64_t begin, count;  // elements
  };
  Part part(int q) const {
    const auto index = static_cast<size_t>(q);
    return counts.empty() ? Part{count * index, count} : Part{displacements[index], counts[index]};
  }
  uint64_t size() const { return dtype_size(dtype); }
  // The bytes of the larger buffer, and the size of the largest part.
  uint64_t whole_bytes() const;
  uint64_t largest_part() const;  // elements
  uint64_t largest_part_bytes() const { return largest_part() * size(); }
};

// The flows of one rank: a plan, and the time to make it, grow with the number of ranks and not
// with the number of pairs. Buffer 0 is the input and buffer 1 the output; a broadcast has buffer 0
// alone.
struct Flow {
  // elements, in the sender's input and the receiver's output
  uint64_t src = 0, dst = 0, count = 0;
};
struct DataMovement {
  const char* name = "";  // name of the collective
  int rank = 0, ranks = 1;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  bool same_to_all = false;  // a rank sends the same bytes to everybody
  bool one_buffer = false;   // broadcast: output is the input
  // everybody sends to everybody: the call ends when all have entered, whatever the counts
  bool every_rank_sends = false;
  bool mirrored = false;
  // by peer: what `rank` sends to it, and receives from it; what the rank keeps is in both
  std::vector<Flow> sends, receives;
  uint64_t longest = 0;  // elements of the longest flow between any two ranks
  std::vector<uint64_t> input_bytes, output_bytes;  // by rank

  const Flow& to(int peer) const { return sends[static_cast<size_t>(peer)]; }
  const Flow& from(int peer) const { return receives[static_cast<size_t>(peer)]; }
};
DataMovement all_gather_movement(const Shape&);
DataMovement gather_movement(const Shape&);
DataMovement scatter_movement(const Shape&);
DataMovement all_to_all_movement(const Shape&);
DataMovement broadcast_movement(const Shape&);

// The parts of the input that each rank reduces, and the ranks that get the results. Parts may
// overlap: then several ranks reduce the same elements.
enum class Deliver : uint8_t {
  self,  // the rank that reduces it, at the begin of its output
  all,   // everybody, at the place in the output where the part lies in the input
  root,  // the root, likewise
};
struct ReductionShape {
  const char* name = "";
  int rank = 0, ranks = 1, root = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  Deliver deliver = Deliver::self;
  // then a rank's slot holds its input once, not a part for each rank that reduces
  bool every_rank_reduces_all = false;
  bool mirrored = false;
  std::vector<Shape::Part> parts;  // by rank
  uint64_t input_bytes = 0, output_bytes = 0;
};
ReductionShape reduction_of_reduce_scatter(const Shape&);
// in parts of whole 64-byte lines, as even as possible
ReductionShape reduction_of_all_reduce(const Shape&);
ReductionShape reduction_of_small_all_reduce(
    const Shape&);  // everybody reduces everything: one exchange less
ReductionShape reduction_of_reduce(const Shape&);
ReductionShape reduction_of_small_reduce(const Shape&);  // the root reduces everything

Plan move_direct(const DataMovement&);
Plan move_slots(const DataMovement&, uint64_t slot_bytes);
Plan reduce_direct(const ReductionShape&);
Plan reduce_slots(const ReductionShape&, uint64_t slot_bytes);

// In at most so many steps, 1 .. kMaxTicks, of as few messages as suffice (in_steps.cpp); mirrored
// slots that hold all of it.
Plan all_gather_in_steps(const Shape&, int steps);
Plan reduce_scatter_in_steps(const Shape&, int steps);
Plan all_reduce_in_steps(const Shape&, int steps);
Plan broadcast_in_steps(const Shape&, int steps);
Plan barrier_in_steps(int rank, int ranks, int steps);
// By what the ranks that are known of multiply in each step.
int radix_of(int ranks, int steps);

// Payloads of at most kInlineBytes: each part (all_gather), the whole input (reduce_scatter), the
// vector (the others).
Plan all_gather_inline(const Shape&);
Plan reduce_scatter_inline(const Shape&);
Plan all_reduce_inline(const Shape&);
Plan broadcast_inline(const Shape&);
// Everybody moves bytes: receivers pull most of the root's buffer, and the root pushes the rest.
Plan broadcast_balanced(const Shape&);
// Receivers pull all of the root's buffer, which may be memory that the system reads for them.
Plan broadcast_read(const Shape&);
Plan barrier(int rank, int ranks);

}  // namespace fsccl
