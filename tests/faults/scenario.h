// A program of two ranks, in phases in which calls of the system may fail. The ranks join, work, go
// on with a new communicator after the first was aborted, exchange their shards there, and give
// everything back. A rank that gets an error does what the header says: it aborts the communicator
// if others may wait for the rank, and destroys its objects.
#pragma once
#include <fsccl/fsccl.h>

#include <cstddef>

namespace fsccl::testing {

constexpr int kRanks = 2;

enum class Phase { join, work, shrink, exchange, destroy, count };
const char* name_of(Phase phase);

// The first error of a rank, and the call that returned it.
struct Outcome {
  fsccl_status_t status = FSCCL_OK;
  const char* call = "";
  char text[400] = "";
};

class Scenario {
 public:
  // `read_id` and `write_id` are the ends of a pipe for the unique id, which rank 0 sends to
  // rank 1. The object closes them.
  Scenario(int rank, int read_id, int write_id)
      : rank_(rank), read_id_(read_id), write_id_(write_id) {}

  void join();
  void work();
  void shrink();
  void exchange();
  // Returns false if something could not be given back. It may be called again.
  bool destroy();

  const Outcome& outcome() const { return outcome_; }
  // Returns true if a result was wrong.
  bool wrong_bytes() const { return wrong_bytes_; }

 private:
  bool note(const char* call, fsccl_status_t status);
  bool collectives();
  bool messages();
  bool steps();
  bool make_unit();
  bool reshard();

  int rank_;
  int read_id_, write_id_;
  Outcome outcome_;
  bool wrong_bytes_ = false;
  bool exchanges_ = false;  // both ranks have a unit and the new communicator
  fsccl_comm_t comm_ = nullptr, part_ = nullptr, left_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
  fsccl_unit_t unit_ = nullptr;
  void* block_ = nullptr;
};

}  // namespace fsccl::testing
