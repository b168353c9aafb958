// What the channels of one rank of a job share: a UCX worker, an endpoint to each rank to which something was sent, and a thread
// that moves bytes while nobody else does.
//
// Trust. The cards that ranks show each other pass through the job's authenticated tree, with a nonce of each. A message counts
// only with the token of its sender and receiver (message.h); all others are dropped unread.
//
// Progress. Whoever polls a channel moves the worker on; so an exchange of two ranks that both wait involves no other thread. The
// thread of the node sleeps without any part in it until somebody is about to sleep (`need`), or goes away while something has yet
// to leave (`rest`). Then it sleeps in epoll, moves the worker on when something comes, and goes back to sleep when nobody sleeps
// and all has left.
//
// Locking. One mutex guards the worker and all that its callbacks touch. Handlers run with it held; they never call the engine.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transports/ucx/message.h"
#include "transports/ucx/ucx_library.h"
#include "wire/authentication.h"

namespace fsccl::ucx {

class Channel;
class Mirrors;
class Node;

// A message on its way out; it keeps what UCX reads until then.
struct Sending {
  Header header{};
  fsccl_transport_failure_t failure{};
  Node* node = nullptr;
  std::shared_ptr<Mirrors> memory;  // where its bytes lie
  int rank = 0;                     // to whom
};

class Node {
 public:
  // By this library; null: the one that is there.
  static Result<std::unique_ptr<Node>> join(const fsccl_transport_job_t& job, const UcxLibrary* ucx = nullptr);
  ~Node();
  Node(const Node&) = delete;

  // Bytes that the other ranks need, and those of all of them, `bytes` apart.
  const std::vector<uint8_t>& card() const { return card_; }
  Status connect(const uint8_t* cards, size_t bytes);

  std::mutex& mutex() { return mutex_; }
  bool checksum() const { return header_bytes_ == sizeof(Header); }  // messages carry sums

  // With the mutex held.
  void add(Channel* channel);  // gets what has come for it before
  void remove(Channel* channel);
  // The bytes lie in `memory`, which is kept until they have left; those of a failure are copied.
  void send(int rank, const Header& header, const void* data, size_t bytes, std::shared_ptr<Mirrors> memory);
  bool broken(int rank) const { return peers_[static_cast<size_t>(rank)].broken; }
  // Why nothing goes to or comes from a rank any more.
  const std::string& problem(int rank) const { return peers_[static_cast<size_t>(rank)].problem; }
  unsigned advance() { return ucx_.worker_progress(worker_); }

  // Without it.
  void poll();  // moves the worker on unless another thread does
  void need();  // somebody will sleep until a message comes
  void rest();  // the caller goes away
  // Of those who sleep until a message comes, on whatever word.
  uint32_t sleepers = 0;

 private:
  struct Peer {
    Node* node = nullptr;
    int rank = 0;
    std::vector<uint8_t> address;
    Token to{}, from{};  // tokens of messages to and from it
    ucp_ep_h endpoint = nullptr;
    bool broken = false;
    std::string problem;
  };
  // What came for a channel that this rank has not opened yet.
  struct Early {
    Header header{};
    std::vector<uint8_t> bytes;
    void* descriptor = nullptr;  // else its bytes are with UCX
    size_t descriptor_bytes = 0;
  };

  Node(const UcxLibrary& ucx, const fsccl_transport_job_t& job);
  Status start();
  bool reach(Peer& peer);
  void post(Peer& peer, Sending* sending, const void* data, size_t bytes);
  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param);
  // Whether the descriptor `data` of a rendezvous is still in use.
  bool take(const Header& header, void* data, size_t bytes, bool rendezvous);
  void refuse(const Header& header);
  ucs_status_t damaged(Peer& peer, uint32_t sum, uint32_t meant);
  bool keep(const Header& header, void* data, size_t bytes, bool rendezvous);
  void fetch(void* descriptor, std::byte* place, size_t bytes, Channel& channel, int peer, const Header& header);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_fetched(void* request, ucs_status_t status, size_t bytes, void* fetching);
  static void on_broken(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  void broke(Peer& peer, std::string why);
  Token token(int from, int to) const;
  // node_progress.cpp
  void start_service();
  bool flushed();
  bool settle(void* request, Deadline deadline);
  void wake();
  void serve();

  const UcxLibrary& ucx_;
  const int rank_;
  const size_t header_bytes_;  // that are sent
  SecretKey key_;
  std::vector<uint8_t> card_;
  std::vector<Nonce> nonces_;
  std::mutex mutex_;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;  // descriptor of the worker, ready when it should be moved on
  std::vector<Peer> peers_;
  std::unordered_map<uint64_t, Channel*> channels_;
  std::unordered_map<uint64_t, std::vector<Early>> early_;
  size_t early_bytes_ = 0;
  std::unordered_set<uint64_t> closed_;  // channels; what comes for them is late
  std::deque<Sending> sendings_;
  std::vector<Sending*> idle_sendings_;
  void* flush_ = nullptr;               // a request
  bool complained_ = false;             // of messages without a token
  std::atomic<bool> unflushed_{false};  // something was sent since the last flush

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int64_t> needed_until_ns_{0};
  std::atomic<bool> leaving_{false};  // something has yet to leave
  std::atomic<bool> dozing_{false}, stop_{false};
  std::atomic<uint32_t> polls_{0};
  std::thread thread_;
};

}  // namespace fsccl::ucx
