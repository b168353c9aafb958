// A Together guards a call in which ranks agree in several steps (consensus.h) or make a
// communicator. A rank that finds no memory between two steps leaves the call by an exception, and
// the other ranks would wait for its next step until their deadline. Together therefore fails the
// communicators of the call, and the other ranks get FSCCL_ERR_OUT_OF_MEMORY with the number of
// that rank. If this rank has submitted nothing in the call yet, the communicators stay as they
// are, and the call can be made again.
//
// The communicators of one call also fail together if one of them fails for another reason, because
// the ranks of the other communicator may wait for a rank that has left the call.
#pragma once
#include <array>
#include <cstdint>

#include "base/thrown.h"
#include "comm/communicator.h"

namespace fsccl {

class Together {
 public:
  // `other` may be null. Both communicators must outlive this object.
  explicit Together(Communicator& comm, Communicator* other = nullptr)
      : engines_{&comm.engine(), other ? &other->engine() : &comm.engine()},
        submitted_(submitted()) {}
  ~Together();
  Together(const Together&) = delete;

  // Says that other ranks wait for this rank from now on, even if it has submitted nothing.
  void begin() { begun_ = true; }

 private:
  uint64_t submitted() const;

  const std::array<Engine*, 2> engines_;
  const uint64_t submitted_;
  const Thrown thrown_;
  bool begun_ = false;
};

}  // namespace fsccl
