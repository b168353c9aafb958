// The calls of the ranks of a simulated job: a sequence of operations drawn from the seed, each
// rank's buffers for it, and the content that the buffers must have when it is over.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/list.h"
#include "transports/sim/world.h"

namespace fsccl::sim {

struct Op {
  enum class Kind : uint8_t { plain, list, vector_all_to_all };
  Kind kind = Kind::plain;
  OpCode code = OpCode::barrier;
  ListKind list{};
  int root = 0;  // send: the sender
  int to = -1;   // send: the receiver
  int tag = 0;   // send
  fsccl_op_t reduction = FSCCL_SUM;
  bool in_place = false;
  struct Tensor {
    fsccl_dtype_t dtype = FSCCL_UINT8;
    size_t count = 0;
    std::vector<size_t> counts, displacements;  // all_to_all_v: counts[from * ranks + to]
  };
  std::vector<Tensor> tensors;  // only lists have several

  bool concerns(int rank) const { return code != OpCode::send || rank == root || rank == to; }
  std::string text() const;
};

struct ProgramSize {
  int ranks = 2, ops = 10;
  size_t bytes = 0;  // about the bytes of a tensor's larger buffer, at most
};
std::vector<Op> random_program(World& world, const ProgramSize& size);
// Returns another call in place of `op`, which is legal by itself, but not what the others call.
Op differing(World& world, const Op& op, int ranks);

// Memory of a rank that all ranks of a machine map.
struct Arena {
  explicit Arena(size_t bytes) : memory(bytes) {}
  std::vector<std::byte> memory;
  size_t used = 0;
};

// One operation of one rank, which lives until the operation is complete.
class Call {
 public:
  // `arena` is where buffers may lie, or null.
  Call(World& world, const Op& op, uint64_t number, int rank, int ranks, Arena* arena);
  Status start(Collectives& collectives, Lists& lists);
  // Returns why the buffers are wrong, or nothing: the output must be right, nothing beside it
  // written, and the input unchanged.
  std::optional<std::string> problem() const;
  // Is called when the operation has failed, so that its buffers belong to the caller again. Notes
  // their contents, so that touched() can tell whether they were written later.
  void give_back();
  bool touched() const;

  uint64_t sequence = 0;  // in its engine

 private:
  struct Buffer {
    std::byte* at = nullptr;
    size_t count = 0;
    std::vector<std::byte> own;
  };
  void make(World& world, Buffer* buffer, size_t tensor, size_t count, Arena* arena) const;
  size_t input_count(const Op::Tensor& tensor) const;
  size_t output_count(const Op::Tensor& tensor) const;
  int64_t value(size_t tensor, int rank, size_t index) const;
  int64_t reduced(size_t tensor, size_t index) const;
  // Returns the value that an element of the output must have, or nothing if it must not change.
  std::optional<int64_t> expected(size_t tensor, size_t index) const;

  const Op op_;
  const uint64_t number_;
  const int rank_, ranks_;
  std::vector<Buffer> inputs_, outputs_;
  std::vector<std::vector<std::byte>> given_back_;
  std::vector<size_t> sends_, send_at_, receives_, receive_at_;  // all_to_all_v
};

}  // namespace fsccl::sim
