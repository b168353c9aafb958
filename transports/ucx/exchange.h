// An exchange (../exchange.h) by tagged messages of UCX. Each part is sent straight from its place
// and received at its place. UCX makes progress while the caller waits, and through the service
// thread between calls, because other ranks wait for its answers.
//
// Trust. UCX accepts every connection. A part is taken only with its tag: 64 bits that are computed
// from a nonce of the sender and one of the receiver, which only the communicator's ranks know. A
// part without its tag is ignored, but UCX keeps it until the worker ends, so the network must be
// closed to others.
//
// Memory of GPUs needs a UCX with CUDA, 1.18 or later: earlier versions do not notice when virtual
// memory of a GPU is unmapped, and keep it registered.
#pragma once
#include <mutex>

#include "transports/exchange.h"
#include "transports/ucx/ucx_library.h"
#include "wire/authentication.h"

namespace fsccl::ucx {

class TaggedExchange final : public Exchange {
 public:
  static Result<std::unique_ptr<Exchange>> create(const UcxLibrary& ucx, int rank, int ranks,
                                                  bool device_memory);
  ~TaggedExchange() override;

  Status connect(const std::vector<std::vector<uint8_t>>& endpoints) override;
  Status run(const std::vector<Part>& sends, const std::vector<Part>& receives,
             const Patience& patience) override;

 private:
  struct Peer {
    TaggedExchange* all = nullptr;
    int rank = 0;
    std::vector<uint8_t> address;
    ucp_tag_t to = 0, from = 0;
    ucp_ep_h endpoint = nullptr;   // made when something is first sent to it
    ucs_status_t broken = UCS_OK;  // the reason why the connection broke
    int64_t broken_ns = 0;
  };
  struct Pending {
    TaggedExchange* all;
    const Peer* peer;
    uint64_t bytes;
    bool receives;
    bool over = false;
    void* request = nullptr;  // UCX's request until it is over
  };
  TaggedExchange(const UcxLibrary& ucx, int rank, int ranks, bool device_memory);
  Status start();
  ucp_tag_t tag(const Nonce& sender, const Nonce& receiver, int from, int to) const;
  Status reach(Peer& peer);
  Status post(const Part& part, bool receives);
  Status wait(const Patience& patience, const std::function<bool()>& done);
  std::string missing() const;
  // Returns an error if a transfer from or to a rank is not over whose connection broke.
  Status cut_off(int64_t now) const;
  int64_t visit();
  Status trouble_of(const Pending& pending, ucs_status_t status, uint64_t bytes);
  void over(Pending& pending, void* request, ucs_status_t status, uint64_t bytes);
  static void on_sent(void* request, ucs_status_t status, void* pending);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* pending);
  static void on_broken(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  void close(bool force);

  const UcxLibrary& ucx_;
  const int rank_;
  const bool device_memory_;
  Nonce nonce_{};
  ucp_worker_h worker_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<void*> closing_;    // endpoints that close() closes
  std::vector<Pending> pending_;  // requests of the run in flight; UCX has their addresses
  size_t left_ = 0;               // the number of them that are not over
  Status trouble_;                // the first error
  // the error if there is no memory for one
  Status no_memory_ = fail(FSCCL_ERR_OUT_OF_MEMORY, "UCX: no memory to note an error");
  std::mutex mutex_;     // guards the worker
  int64_t news_ns_ = 0;  // the time when UCX last made progress
  bool resting_ = true;  // the service thread moves the worker on rarely
  int hook_ = -1;
};

// Returns the reason why UCX cannot move memory of GPUs on this machine, or an empty text if it
// can.
std::string why_not_device_memory(const UcxLibrary& ucx);

}  // namespace fsccl::ucx
