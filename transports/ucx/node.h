// A node over UCX: a worker, and an endpoint for each rank to which something was sent.
//
// Paths. There are three. The bytes travel in an active message (am), which UCX takes from the
// sender's ring. Eager messages go where they are expected. A message by UCX's rendezvous protocol
// always goes to the mirror, because it cannot be called back. Or the bytes are put into the
// receiver's mirror (put), and the receiver is told once a flush says that they are there. Or they
// are offered to the receiver (get), which gets them from the sender's ring into its mirror, and
// then says so, so that the sender may go on. Only the sender chooses; a receiver takes what
// arrives. If every rank has a device for RDMA, messages of 32 KiB and more take the path that was
// fastest when the first communicator started (src/select/paths.h). Puts and gets need keys to each
// other's memory (registration.h). The two ranks ask for these when bytes are first to take such a
// path. Until then, and for ever if it is not possible, bytes travel in active messages.
//
// Callbacks of UCX (on_...) run in spare(), because no exception may pass through UCX.
//
// Trust. Ranks exchange their endpoint addresses, with a nonce of each, through the job's
// authenticated tree. A message counts only with the token of its sender and receiver (message.h).
// All other messages are dropped unread.
#pragma once
#include <deque>

#include "base/clock.h"
#include "base/config.h"
#include "transports/mirror/node.h"
#include "transports/ucx/message.h"
#include "transports/ucx/ucx.h"
#include "transports/ucx/ucx_library.h"
#include "wire/authentication.h"

namespace fsccl::ucx {

class Node;

class Registration;

// The paths of bytes, with the numbers of Channel::path().
enum class Path { am, put, get };

// A message that is being sent. It keeps the memory that UCX or the receiver reads until it is
// sent.
struct Sending {
  Envelope envelope{};
  fsccl_transport_failure_t failure{};
  Node* node = nullptr;
  std::shared_ptr<mirror::Mirrors> memory;     // the memory in which its bytes lie
  std::shared_ptr<Registration> registration;  // the same, if the hardware reads or writes it
  int rank = 0;                                // the receiver
  uint32_t number = 0;                         // the number of this message
  bool offered = false;                        // its bytes have not been got yet
  bool left = false;                           // UCX no longer uses it
};

class Node : public mirror::Node {
 public:
  // Makes a node that uses this library, or the one that is installed if it is null.
  static Result<std::unique_ptr<Node>> join(const fsccl_transport_job_t& job,
                                            const UcxLibrary* ucx = nullptr);
  ~Node() override;

  Status connect(const uint8_t* endpoints, size_t bytes) override;
  bool takes_at_once() const override { return false; }
  size_t most_slot_bytes() const override { return kMostSlotBytes; }
  const char* path(int number) const override;
  int take_path(mirror::Channel& channel, int rank, int number) override;
  void remove(mirror::Channel* channel) override;

 protected:
  void post(int rank, const mirror::Header& header, mirror::Payload&& payload, bool more) override;
  // Does nothing: its messages arrive completely or not at all, so a failure can still be reported.
  void drop(int) noexcept override {}
  bool advance(int) override { return ucx_.worker_progress(worker_) != 0; }
  bool flushed() override;
  bool arm() override;
  int events() const override { return events_; }
  void interrupt() override;
  bool owes_answers() const override { return true; }
  // Fetches the bytes of an offer. The offer is one of the types below.
  void fetch(int from, const mirror::Header& header, void* offer, size_t bytes, std::byte* place,
             mirror::Channel& channel, int peer) override;
  void drop_offer(void* offer) override;

 private:
  struct Peer {
    Node* node = nullptr;
    int rank = 0;
    std::vector<uint8_t> address;
    Token to{}, from{};  // tokens of messages to and from it
    ucp_ep_h endpoint = nullptr;
    void* closing = nullptr;  // the request that closes the endpoint
    Path path = Path::am;
    bool alike = true;  // the peer has the same UCX, and so can use our keys
  };
  struct Fetching;
  // The bytes of a message that are outside of it: those of a message by UCX's rendezvous protocol,
  // those that were put into the mirror, or those that can be got.
  struct Offer {
    Act act = Act::message;
    int from = 0;
    uint64_t channel = 0;
    void* descriptor = nullptr;  // UCX's descriptor, for its rendezvous protocol
    uint32_t number = 0;         // the sender's number of bytes that can be got
  };

  Node(const UcxLibrary& ucx, const fsccl_transport_job_t& job);
  Status start();
  bool reach(Peer& peer);
  Sending* take(Peer& peer, Act act, const mirror::Header& header);
  void submit(Peer& peer, Sending* sending, const void* data, size_t bytes);
  void finish(Sending* sending);
  ucs_status_t receive(Peer& peer, const Envelope& envelope, void* data, size_t bytes, bool rndv);
  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_fetched(void* request, ucs_status_t status, size_t bytes, void* fetching);
  static void on_got(void* request, ucs_status_t status, void* fetching);
  void fetched(Fetching* fetching, void* request, ucs_status_t status, size_t bytes);
  static void on_broken(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  Token token(int from, int to) const;
  bool finish_request(void* request, Deadline deadline);  // node_progress.cpp

  // node_remote.cpp
  std::shared_ptr<Registration> registration_of(const mirror::Channel& channel);
  int ready_for(const Peer& peer, Registration& registration) const;
  Act act_for(Peer& peer, const mirror::Header& header, const mirror::Payload& payload);
  void put(Peer& peer, Sending* sending, const mirror::Payload& payload);
  static void on_put(void* request, ucs_status_t status, void* sending);
  static void on_there(void* request, ucs_status_t status, void* sending);
  void not_put(Sending* sending, ucs_status_t status);
  bool get(Fetching* fetching, std::byte* place, size_t bytes);
  void say(int rank, Act act, uint64_t channel, uint64_t tag, uint32_t number);
  void tell_key(Peer& peer, const mirror::Header& header, Registration& registration);
  void take_key(Peer& peer, const Envelope& envelope, const void* key, size_t bytes);
  void key_returned(Peer& peer, const Envelope& envelope);
  void done_with(Registration& registration, int rank, uint64_t channel);
  void tidy(uint64_t channel);
  void tell_lanes(Peer& peer);

  const UcxLibrary& ucx_;
  SecretKey key_;
  std::vector<Nonce> nonces_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;  // the worker's descriptor, which is ready when the worker should be moved on
  std::vector<Peer> peers_;
  std::deque<Sending> sendings_;
  std::vector<Sending*> idle_sendings_;
  std::unordered_map<uint64_t, std::shared_ptr<Registration>> registrations_;  // by channel
  const UcxPath asked_;
  bool rdma_everywhere_ = false;  // every rank has a device for RDMA
  size_t least_bytes_;            // bytes of a message that takes another path than active messages
  bool told_lanes_ = false;
  void* flush_ = nullptr;    // the request of a flush
  bool closing_ = false;     // the endpoints are being closed, and nothing is sent any more
  bool complained_ = false;  // true after the first message without a token
};

}  // namespace fsccl::ucx
