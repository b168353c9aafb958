// Parts of memory, GPUs' or the host's, that the ranks of a communicator send each other from where
// they lie to where they are to be. The caller waits. By UCX, where it was built for CUDA
// (ucx/exchange.h): then it finds for each pair of ranks the way between their GPUs, with RDMA,
// CUDA IPC, or through host memory of its own.
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
  // This rank's; for connect() of all ranks.
  const std::vector<uint8_t>& endpoint() const { return endpoint_; }
  // By rank. Does not communicate.
  virtual Status connect(const std::vector<std::vector<uint8_t>>& endpoints) = 0;

  struct Part {
    int peer;
    std::byte* memory;
    uint64_t bytes;  // not 0
  };
  struct Patience {
    int64_t timeout_ms;
    // asked now and then: an error when the others need not be waited for any more
    std::function<Status()> broken;
  };
  // Returns when all parts have left and are there. Between two ranks they meet in the order of the
  // calls, and within one of their lists; they are as long on both. Memory of GPUs: the caller
  // holds its context, and the stream that made the bytes has come to them. After an error nothing
  // touches the memory any more, and every later call is the same error. One thread at a time.
  virtual Status run(const std::vector<Part>& sends, const std::vector<Part>& receives,
                     const Patience& patience) = 0;
  virtual ~Exchange() = default;

 protected:
  std::vector<uint8_t> endpoint_;
};

// The terms of an exchange, which a machine can state before there is one; plain bytes.
struct ExchangeTerms {
  // version of UCX, which must be the same on all ranks; 0: there can be no exchange, and `why`
  // says the reason
  uint32_t version = 0;
  uint8_t rdma = 0;  // the machine has devices for that
  char why[255] = "";
};
ExchangeTerms exchange_terms();
// For parts that are memory of GPUs.
Result<std::unique_ptr<Exchange>> make_exchange(int rank, int ranks);

}  // namespace fsccl
