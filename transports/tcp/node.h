// A node over TCP. It has one socket to each rank with which it exchanges anything, made when the
// first of the two has something to send.
//
// Trust. A socket counts when both ends have proved the job's secret to each other (greeting.h).
// Before that the node keeps nothing for it but the handshake, 95 bytes, for five seconds. If there
// are more than 256 such visitors, the oldest is dropped. After the proof, what arrives comes from
// a rank of the job. Its heads are checked nevertheless (wire.h), and an impossible head ends the
// link. Payloads are neither encrypted nor signed.
//
// Two ranks that call each other at once. The call of the lower rank counts once that rank has sent
// its proof. From then on the higher rank may take this call for the link and give up its own call,
// so the lower rank refuses the higher rank's call. Before its proof the lower rank takes the
// higher rank's call and ends its own, which might never get through: one of the two may not reach
// the other at all, or only at the last of its addresses.
//
// Big messages. If a socket is full, the rest is sent later, so no thread waits for a peer to read.
// A thread that waits, reads and sends. The system chooses the sizes of the sockets' buffers.
//
// Polling. A thread that waits for a rank reads that rank's socket. When nothing was there it calls
// epoll instead, which looks at all links, the listener and the handshakes: a read takes the
// socket's lock and its cache lines away from the core that delivers into it. In the middle of a
// message the thread goes on reading, and calls epoll every 16th time.
//
// The end. A rank that leaves sends a goodbye behind its last message, and closes when the other
// systems have received it. The loss of a rank is a socket that ends without a goodbye, an address
// where nobody listens, or 20 s in which the system there does not answer. It is reported when the
// job says that the rank died, or after 300 ms (mirror/README.md). Heartbeats notice a host that
// vanishes (FSCCL_HOST_LOST_MS). A rank that computes and reads nothing is waited for as long as
// its system answers. The child of a fork has neither the listener nor the sockets of links and
// dials. It keeps its copy of a connection whose peer has called and was not greeted yet.
#pragma once
#include <deque>
#include <map>

#include "base/clock.h"
#include "transports/mirror/node.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/greeting.h"
#include "transports/tcp/inbox.h"
#include "transports/tcp/outbox.h"

namespace fsccl::tcp {

// The most bytes of a slot. Between hosts each message takes system calls, a packet that is partly
// filled, and sometimes a signal of the receiver. src/plan/turn.h says how much of a slot plans
// use, and with more than two ranks slots are smaller (mirror/mirrors.h). A broadcast of 64 MiB
// between two hosts takes 0.85 of the time that it takes with slots of 512 KiB, but one of 1 MiB in
// one piece takes 1.4 times as long (measured on 2026-11-30 and 2026-12-01, Zen 5).
inline constexpr size_t kMostSlotBytes = 2u << 20;

class Node : public mirror::Node {
 public:
  static Result<std::unique_ptr<Node>> join(const fsccl_transport_job_t& job);
  ~Node() override;

  Status connect(const uint8_t* endpoints, size_t bytes) override;
  bool takes_at_once() const override { return true; }
  size_t most_slot_bytes() const override { return kMostSlotBytes; }
  // Returns the number of visitors that have not proved themselves; for tests.
  size_t visitors() const { return visitors_.size(); }

 protected:
  void post(int rank, const mirror::Header& header, mirror::Payload&& payload, bool more) override;
  void drop(int rank) noexcept override { close_link(links_to_[static_cast<size_t>(rank)]); }
  bool advance(int rank) override;
  bool flushed() override;
  bool arm() override;
  int events() const override { return epoll_.get(); }
  void interrupt() override;

 private:
  // An attempt to reach a rank, address by address.
  struct Dial {
    size_t next = 0;  // the address to try next
    int rounds = 0;   // the number of rounds over all addresses that have ended
    std::unique_ptr<Caller> caller;
    int64_t until_ns = 0;   // end of this attempt, or of the pause before the next round
    int64_t end_ns = 0;     // end of all attempts, unless the peer answers
    bool again = false;     // an attempt of this round may succeed in another round
    bool answered = false;  // the system at one of the addresses has answered
    std::string problem;
  };
  // The exchange with one rank.
  struct Link final : Inbox::Reader {
    Link(Node& node_, int rank_, bool checksum) : node(node_), rank(rank_), in(*this, checksum) {}
    std::byte* begin(const Head& head) override;
    std::byte* go_on(const Head& head, std::byte* place) override;
    bool end(const Head& head, std::byte* place) override;
    void spoilt(const Head& head) override;
    void uncount() noexcept;

    Node& node;
    const int rank;
    // The socket of the link, and that of the dial. -1: there is none. The child of a fork reads
    // them.
    std::atomic<int> fd{-1}, dialled{-1};
    bool over = false;  // nothing will be sent or received any more
    bool deaf = false;  // the peer takes nothing more, but there may be something to read
    bool said_goodbye = false;
    // The last read found nothing. epoll says when to try again.
    bool dry = false;
    bool armed = false;  // epoll says when there is room to send
    // The destination of the bytes of the message that is arriving.
    enum class Goes { nowhere, to_channel, to_whole } goes = Goes::nowhere;
    mirror::Channel* channel = nullptr;  // the channel that gives their place
    std::vector<std::byte> whole;        // for a channel that is not open, or bytes of no mirror
    size_t early = 0;                    // the bytes of it that the node's early_bytes_ counts
    Inbox in;
    Outbox out;
    std::unique_ptr<Dial> dial;
  };
  Node(const fsccl_transport_job_t& job);
  Status start();
  Status watch(int fd, uint32_t events, uint64_t what, int operation);
  // It is called before the socket is closed here, because the child of a fork may have it, too.
  void unwatch(int fd) noexcept;
  // These are in node.cpp.
  bool read(Link& link);
  bool read_some(Link& link);
  bool flush(Link& link);
  bool flush_all();
  void finish(Link& link, std::string why);  // is called when its socket has ended
  bool look();                               // looks at all descriptors
  void close_link(Link& link) noexcept;
  static void in_child(void* self);
  // These are in links.cpp.
  void dial(Link& link);
  void try_next(Link& link);
  void attempt_failed(Link& link, const Status& why, bool again);
  void hang_up(Link& link) noexcept;
  void end_dial(Link& link) noexcept;
  void dialled(Link& link);
  void accept_all();
  void visited(int fd);
  bool stays(Visitor& visitor);
  void see_off(std::map<int, Visitor>::iterator visitor) noexcept;
  void adopt(Link& link, Fd fd);
  void keep_time();

  Credentials credentials_;
  Fd epoll_, wake_, listener_;
  uint16_t port_ = 0;
  std::vector<Endpoint> endpoints_;
  std::deque<Link> links_to_;         // by rank
  std::vector<Link*> writers_;        // the links that have something left to send
  size_t dials_ = 0;                  // the number of attempts under way
  std::map<int, Visitor> visitors_;   // by descriptor
  int64_t door_closed_until_ns_ = 0;  // nothing is accepted until then: no descriptors were left
  int64_t next_time_ns_ = 0;
  uint32_t turns_ = 0;
  int fork_hook_ = -1;
};

// The subject of an event of a node's epoll. about() packs it with a number.
enum class About : uint32_t { wake, listener, visitor, dial, link };
constexpr uint64_t about(About what, int number = 0) {
  return static_cast<uint64_t>(what) << 32 | static_cast<uint32_t>(number);
}

}  // namespace fsccl::tcp
