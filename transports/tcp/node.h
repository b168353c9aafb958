// A node over TCP: one socket to each rank with which something is exchanged, made when the first
// of the two has something to send.
//
// Trust. A socket counts once both ends have proved the job's secret to each other (greeting.h);
// before that nothing is kept for it but the handshake. After it, what comes is from a rank of the
// job; its heads are checked nevertheless (wire.h), and one that cannot be ends the link.
//
// Two that call each other at once. The call of the lower rank counts once that rank has sent its
// proof: the higher rank may take the call for the link from then on, and gives its own call up for
// it, so the lower rank refuses the higher rank's. Before that the lower rank takes the higher
// rank's call and ends its own, which may never get through: one of the two may not reach the other
// at all, or only at the last of its addresses.
//
// Big messages. A socket that is full is left for later, so that nobody waits for a peer to read;
// who waits, reads and sends.
//
// The end. A rank that leaves says goodbye behind all that it sent. A socket that ends without that
// is the loss of its rank.
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

// Bytes of a slot at most. Between hosts each message costs calls, a packet that is not full, and
// now and then a signal of the receiver. src/plan/turn.h says how much of a slot plans use in which
// several ranks send at once.
inline constexpr size_t kMostSlotBytes = 512u << 10;

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
    size_t next = 0;  // address
    int rounds = 0;   // that are over
    std::unique_ptr<Caller> caller;
    int64_t until_ns = 0;   // end of this attempt, or of the pause before the next round
    int64_t end_ns = 0;     // end of all attempts, unless the peer answers
    bool again = false;     // something in this round may go better in another
    bool answered = false;  // the system at one of the addresses
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
    std::atomic<int> fd{-1};  // while it is up; the child of a fork looks at it
    bool over = false;        // nothing will be sent or received any more
    bool deaf = false;        // the peer takes nothing more; there may be something to read
    bool said_goodbye = false;
    // nothing was there when it was read last: epoll tells when it is worth another try
    bool dry = false;
    bool armed = false;  // epoll tells when there is room to send
    // The destination of the bytes of the message that comes.
    enum class Goes { nowhere, to_channel, to_whole } goes = Goes::nowhere;
    mirror::Channel* channel = nullptr;  // their place is this one's
    std::vector<std::byte> whole;        // its channel is not open, or it is no bytes of a mirror
    size_t early = 0;                    // bytes of it that the node's early_bytes_ has
    Inbox in;
    Outbox out;
    std::unique_ptr<Dial> dial;
  };
  Node(const fsccl_transport_job_t& job);
  Status start();
  Status watch(int fd, uint32_t events, uint64_t what, int operation);
  void unwatch(int fd) noexcept;  // before it is closed here: the child of a fork may have it, too
  // node.cpp
  bool read(Link& link);
  bool read_some(Link& link);
  bool flush(Link& link);
  bool flush_all();
  void finish(Link& link, std::string why);  // its socket has ended
  bool look();                               // at everything
  void close_link(Link& link) noexcept;
  static void in_child(void* self);
  // links.cpp
  void dial(Link& link);
  void try_next(Link& link);
  void attempt_failed(Link& link, const Status& why, bool again);
  void hang_up(Dial& dial) noexcept;
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
  std::vector<Link*> writers_;        // that have something left to send
  size_t dials_ = 0;                  // under way
  std::map<int, Visitor> visitors_;   // by descriptor
  int64_t door_closed_until_ns_ = 0;  // no descriptors were left
  int64_t next_time_ns_ = 0;
  uint32_t turns_ = 0;
  int fork_hook_ = -1;
};

// The subject of an event of a node's epoll: an address of these, with a number.
enum class About : uint32_t { wake, listener, visitor, dial, link };
constexpr uint64_t about(About what, int number = 0) {
  return static_cast<uint64_t>(what) << 32 | static_cast<uint32_t>(number);
}

}  // namespace fsccl::tcp
