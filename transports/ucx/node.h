// A node over UCX: a worker, and an endpoint to each rank to which something was sent.
//
// Trust. The cards that ranks show each other pass through the job's authenticated tree, with a nonce of each. A message counts
// only with the token of its sender and receiver (message.h); all others are dropped unread.
#pragma once
#include <deque>

#include "base/clock.h"
#include "transports/mirror/node.h"
#include "transports/ucx/message.h"
#include "transports/ucx/ucx_library.h"
#include "wire/authentication.h"

namespace fsccl::ucx {

class Node;

// A message on its way out; it keeps what UCX reads until then.
struct Sending {
  Envelope envelope{};
  fsccl_transport_failure_t failure{};
  Node* node = nullptr;
  std::shared_ptr<mirror::Mirrors> memory;  // where its bytes lie
  int rank = 0;                             // to whom
};

class Node : public mirror::Node {
 public:
  // By this library; null: the one that is there.
  static Result<std::unique_ptr<Node>> join(const fsccl_transport_job_t& job, const UcxLibrary* ucx = nullptr);
  ~Node() override;

  Status connect(const uint8_t* cards, size_t bytes) override;
  bool takes_at_once() const override { return false; }
  size_t most_slot_bytes() const override { return 128u << 10; }
  void send(int rank, const mirror::Header& header, mirror::Payload payload) override;

 protected:
  bool advance(int) override { return ucx_.worker_progress(worker_) != 0; }
  bool flushed() override;
  bool arm() override;
  int events() const override { return events_; }
  void interrupt() override;
  // A rendezvous, whose offer is a descriptor of UCX.
  void fetch(int from, const mirror::Header& header, void* offer, size_t bytes, std::byte* place, mirror::Channel& channel,
             int peer) override;
  void release(void* offer) override { ucx_.am_data_release(worker_, offer); }

 private:
  struct Peer {
    Node* node = nullptr;
    int rank = 0;
    std::vector<uint8_t> address;
    Token to{}, from{};  // tokens of messages to and from it
    ucp_ep_h endpoint = nullptr;
  };
  struct Fetching;

  Node(const UcxLibrary& ucx, const fsccl_transport_job_t& job);
  Status start();
  bool reach(Peer& peer);
  void post(Peer& peer, Sending* sending, const void* data, size_t bytes);
  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_fetched(void* request, ucs_status_t status, size_t bytes, void* fetching);
  static void on_broken(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  Token token(int from, int to) const;
  bool settle(void* request, Deadline deadline);  // node_progress.cpp

  const UcxLibrary& ucx_;
  SecretKey key_;
  std::vector<Nonce> nonces_;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;  // descriptor of the worker, ready when it should be moved on
  std::vector<Peer> peers_;
  std::deque<Sending> sendings_;
  std::vector<Sending*> idle_sendings_;
  void* flush_ = nullptr;    // a request
  bool complained_ = false;  // of messages without a token
};

}  // namespace fsccl::ucx
