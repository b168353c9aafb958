// Exchanges parts of memory, on GPUs or on the host, between the ranks of a communicator. Each part
// is sent from the place where it lies to the place where it must be. The caller waits. UCX does
// this if it was built for CUDA (ucx/exchange.h). For each pair of ranks it finds the connection
// between their GPUs: RDMA, CUDA IPC, or host memory of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace fsccl {

class Exchange {
 public:
  // Returns the endpoint of this rank, which the other ranks need for connect().
  const std::vector<uint8_t>& endpoint() const { return endpoint_; }
  // Takes the endpoints of all ranks, by rank. Does not communicate.
  virtual Status connect(const std::vector<std::vector<uint8_t>>& endpoints) = 0;

  struct Part {
    int peer;
    std::byte* memory;
    uint64_t bytes;  // not 0
  };
  struct Patience {
    int64_t timeout_ms;
    // Is called from time to time. Returns an error if the other ranks need not be waited for any
    // more.
    std::function<Status()> broken;
  };
  // Returns when all parts have been sent and received. Two ranks match their parts in the order of
  // their calls, and in a call in the order of the lists; both ranks must give the same length. For
  // memory of GPUs the caller holds the context, and the stream that made the bytes must have
  // finished them. After an error nothing touches the memory any more, and every later call returns
  // the same error. One thread at a time.
  virtual Status run(const std::vector<Part>& sends, const std::vector<Part>& receives,
                     const Patience& patience) = 0;
  virtual ~Exchange() = default;

 protected:
  std::vector<uint8_t> endpoint_;
};

// The facts about exchanges that a machine knows before there is one. They are plain bytes.
struct ExchangeTerms {
  // The version of UCX, which must be the same on all ranks. 0: there can be no exchange, and `why`
  // has the reason.
  uint32_t version = 0;
  uint8_t rdma = 0;  // 1: the machine has devices for RDMA
  char why[255] = "";
};
ExchangeTerms exchange_terms();
// Makes an exchange for parts in memory of GPUs.
Result<std::unique_ptr<Exchange>> make_exchange(int rank, int ranks);

}  // namespace fsccl
