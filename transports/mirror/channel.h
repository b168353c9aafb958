// A channel between hosts. Each rank has a copy (mirror) of the signal lines and rings of all
// ranks. A peer's put writes to this rank's mirror of the peer's ring. Messages may arrive in any
// order. Each line says how many bytes its rank has put for this one under the line's tick. It
// becomes visible here when so many bytes have arrived.
//
// The engine says in advance where it wants the bytes that it will copy out of a mirror (expect()).
// If they arrive as one message of exactly that size, they are written there at once. This ends
// when the tick is there or the channel has failed. With FSCCL_CHECKSUM=1 messages carry CRC32Cs of
// the header and of the bytes. The sender takes them from the bytes in its own memory, and the
// receiver compares them with the bytes in their final place.
//
// Bytes that are put are sent with the next signal. If the network does not take all of them by the
// end of that call, the rest is copied to the ring of this rank and sent from there. So no call
// waits until bytes have left, and a caller that gets an error owns its buffers. Only messages of
// its peer write to a mirror. The engine's window (tick_window.h) ensures that bytes in a ring have
// been read, here or there, before other bytes take their place.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "transports/mirror/mirrors.h"
#include "transports/mirror/node.h"

namespace fsccl::mirror {

// The failure of a channel and of the channels inside it, as far as this rank knows. It changes
// under the mutex of the node.
struct Board {
  std::atomic<bool> written{false};
  fsccl_transport_failure_t failure{};
  std::vector<Channel*> channels;  // the channel and those inside it that are open here
};

class Channel final : public fsccl::Channel {
 public:
  struct Setup {  // ranks are those of the job
    Node* node = nullptr;
    uint64_t meeting = 0, tag = 0;
    int rank = 0;
    std::vector<int32_t> members;
    size_t slot_bytes = 0;               // 0: chosen_slot_bytes()
    std::vector<int32_t> known_as = {};  // the ranks' numbers in messages; empty: their own
    void (*describe)(const fsccl_transport_line_t* line, char* text, size_t capacity) = nullptr;
    std::shared_ptr<Board> board;
    Channel* around = nullptr;  // for a pair: the channel that it is in, which reports failures
  };
  static Result<std::unique_ptr<Channel>> open(Setup setup);
  ~Channel() override;

  // The engine makes the following calls (transports/channel.h).
  void signal(const fsccl_transport_line_t& line) override;
  void hold() override { holds_ = true; }
  void signal_to(int peer, const fsccl_transport_line_t& line) override;
  const fsccl_transport_line_t* poll(int peer, uint32_t tick) override;
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override;
  std::byte* slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const override;
  void put(int peer, size_t at, const void* source, size_t bytes) override;
  void expect(int peer, uint32_t tick, size_t at, std::byte* destination, size_t bytes) override;
  bool placed(int peer, uint32_t tick, size_t at, size_t bytes) const override;
  void rest() override { setup_.node->rest(); }
  void fail(const fsccl_transport_failure_t& failure) override;
  const fsccl_transport_failure_t* failure() override;
  void hear_out() override { setup_.node->hear_out(); }
  bool left(int peer) const override {
    // This load pairs with the store in count().
    return peers_[static_cast<size_t>(peer)].left.load(std::memory_order_acquire);
  }
  Result<OpenedChannel> pair(int from, int to) override;
  const char* path(int number) const override { return setup_.node->path(number); }
  int take_path(int peer, int number) override;

  // The node makes the following calls, with its mutex held.
  uint64_t meeting() const { return setup_.meeting; }
  uint64_t tag() const { return setup_.tag; }
  int member(int job_rank) const;
  const std::shared_ptr<Mirrors>& memory() const { return mirrors_; }
  // Returns the bytes of the ring that each rank of a pair in this channel has.
  size_t pair_ring_bytes() const;
  // Returns the place for the bytes of a message. If they lie outside of the ring, the channel
  // fails and null is returned. `at_once` says that the bytes have arrived already.
  std::byte* place(int peer, const Header& header, size_t bytes, bool at_once);
  // Returns the place in the mirror for the bytes of a header that has been given a place.
  std::byte* mirror_of(int peer, const Header& header) const;
  bool failed() const { return setup_.board->written.load(std::memory_order_relaxed); }
  void landed(int peer, const Header& header, const std::byte* place, size_t bytes);
  // Reports that bytes from a peer differ from what was sent. `line` is the signal line to which
  // they belong, if it is known.
  void damaged(int peer, const fsccl_transport_line_t* line, size_t bytes, uint32_t sum,
               uint32_t meant);
  void hear(int peer, const Header& header, const void* data, size_t bytes);
  // Notes that the connection to a rank is lost. `for_sure` says that this is no death that the job
  // may still report, so the failure is reported at once.
  void link_lost(int job_rank, bool for_sure) noexcept;

 private:
  struct Put {
    int peer;
    size_t at, bytes;
    const void* source;
    uint32_t sum;
  };
  struct Expected {
    size_t at, bytes;
    std::byte* destination;  // null once the tick is there
    bool placed;
  };
  // The bytes that a peer sends under one tick, until all of them have arrived.
  struct Arrival {
    uint32_t tick = 0;
    bool has_line = false;
    uint64_t bytes_landed = 0, bytes_due = 0;
    fsccl_transport_line_t line{};
    std::vector<Expected> expected;
  };
  struct Peer {
    fsccl_transport_line_t lines[FSCCL_TRANSPORT_TICKS]{};
    Arrival arrivals[FSCCL_TRANSPORT_TICKS];
    uint64_t messages_sent = 0, messages_landed = 0;  // to the peer, and from it
    uint64_t last = 0;  // the number of messages after which the peer has left
    std::atomic<bool> left{false};
    bool known = false;  // something was received from it or sent to it
  };

  explicit Channel(Setup setup);
  // Returns null for a tick whose place a later tick has taken.
  static Arrival* arrival_of(Peer& peer, uint32_t tick);
  Header header(MessageKind kind) const;
  std::byte* own(size_t at) const {
    return mirrors_->at(static_cast<size_t>(setup_.rank) * ring_bytes_ + at);
  }
  void publish(Peer& peer, const fsccl_transport_line_t& line);
  void arrived();
  void send(int peer, MessageKind kind, const fsccl_transport_line_t* line, const Put* put,
            uint64_t sent, bool more = false);
  void send_line(int peer, const fsccl_transport_line_t& line, const Put* puts, const Put* end,
                 bool more);
  int known_as(int rank) const {
    return setup_.known_as.empty() ? rank : setup_.known_as[static_cast<size_t>(rank)];
  }
  // Returns true if the peer has left this channel or the one around it. A broken connection to it
  // is no failure then.
  bool said_goodbye(int peer) const;
  // Writes the board and passes the failure on, unless the board is written.
  void report(const fsccl_transport_failure_t& failure, bool at_first_hand);
  void tell(const fsccl_transport_failure_t& failure, bool at_first_hand);
  void tell(int peer, const fsccl_transport_failure_t& failure);
  void count(Peer& peer);

  const Setup setup_;
  size_t ring_bytes_ = 0, slot_bytes_ = 0;
  std::shared_ptr<Mirrors> mirrors_;
  std::vector<Peer> peers_;
  std::vector<std::pair<int32_t, int>> ranks_;  // job rank, rank; ascending
  std::vector<Put> puts_;                       // for peers that got no line since
  bool holds_ = false;                          // hold() was called: two signals follow
  // The time from which a broken connection, whose rank has not left, is a failure. 0: there is no
  // such connection.
  std::atomic<int64_t> verdict_ns_{0};
  alignas(64) uint32_t arrivals_ = 0;  // the word on which waiting threads sleep
};

}  // namespace fsccl::mirror
