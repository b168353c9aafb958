// A node over UCX: a worker, and an endpoint for each rank to which something was sent.
//
// Paths. Bytes travel in an active message; or they are put to the receiver's mirror, and the
// receiver is told once they are there; or they are offered to the receiver, which gets them and
// says so. The sender alone chooses: a receiver takes what comes. Puts and gets need keys to each
// other's memory (registration.h), for which the two ranks ask when bytes are to go that way the
// first time. Until then, and for ever where that cannot be, bytes go in active messages.
//
// Callbacks from UCX (on_...) spare their rank: no exception may go through UCX.
//
// Trust. Ranks exchange their endpoint addresses through the job's authenticated tree, with a nonce
// of each. A message counts only with the token of its sender and receiver (message.h); all others
// are dropped unread.
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

// The ways of bytes, by the numbers of Channel::path().
enum class Path { am, put, get };

// A message on its way out; it keeps what UCX, or the receiver, reads until then.
struct Sending {
  Envelope envelope{};
  fsccl_transport_failure_t failure{};
  Node* node = nullptr;
  std::shared_ptr<mirror::Mirrors> memory;     // where its bytes lie
  std::shared_ptr<Registration> registration;  // the same, if the hardware reads or writes it
  int rank = 0;                                // the receiver
  uint32_t number = 0;                         // its own
  bool offered = false;                        // its bytes have yet to be got
  bool left = false;                           // UCX has done with it
};

class Node : public mirror::Node {
 public:
  // By this library; null: the one that is there.
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
  // its messages are whole or lost, so a failure can still be told
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
    void* closing = nullptr;  // a request
    Path path = Path::am;
    bool alike = true;  // it has the same UCX, and so understands our keys
  };
  struct Fetching;
  // Bytes of a message that are not in it: those of a message by UCX's rendezvous protocol, what
  // has been put to the mirror, or what can be got.
  struct Offer {
    Act act = Act::message;
    int from = 0;
    uint64_t channel = 0;
    void* descriptor = nullptr;  // descriptor of UCX, for its rendezvous protocol
    uint32_t number = 0;         // the sender's, of what can be got
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
  int events_ = -1;  // descriptor of the worker, ready when it should be moved on
  std::vector<Peer> peers_;
  std::deque<Sending> sendings_;
  std::vector<Sending*> idle_sendings_;
  std::unordered_map<uint64_t, std::shared_ptr<Registration>> registrations_;  // by channel
  const UcxPath asked_;
  size_t least_bytes_;  // bytes of a message that takes another path than active messages
  bool told_lanes_ = false;
  void* flush_ = nullptr;    // a request
  bool closing_ = false;     // its endpoints: nothing is sent any more
  bool complained_ = false;  // true after the first message without a token
};

}  // namespace fsccl::ucx
