// The part that all mirrored channels of a rank of a job share: the connections to the other ranks,
// and a thread that moves bytes while no other thread does. A transport between hosts derives from
// this class. It brings messages (message.h) from rank to rank, each whole and once. This class
// finds the channel of a message, and keeps messages whose channel is not open yet.
//
// Progress. A thread that polls a channel moves the node on, so an exchange of two ranks that both
// wait involves no other thread. The thread of the node sleeps until another thread is about to
// sleep (`need`), or stops polling while bytes have yet to leave (`rest`). Then it sleeps on the
// node's descriptor, moves the node on when something comes, and goes back to sleep when no thread
// sleeps and everything has left. If peers wait for answers (in UCX a rank that leaves wants to
// know that everything has arrived), the thread looks after them ten times a second while no other
// thread polls.
//
// Locking. One mutex guards the connections and everything that comes from them. Handlers run with
// it held, and never call the engine.
//
// If memory is short, a part of the bytes is lost: that connection ends, the channels over it fail
// and say so, and all others go on. Neither a report of a failure nor a thread of the library can
// therefore end in an exception.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "transports/mirror/message.h"
#include "transports/transport.h"

namespace fsccl::mirror {

class Channel;
class Mirrors;

// The bytes of a message that is sent. They are sent from `source`. Bytes that the network does not
// take during send() are copied to `ring`, their place in this rank's own ring, and sent from
// there. With `more`, `source` is read until the next send(). If `ring` is null (for failures), the
// node keeps a copy.
struct Payload {
  const void* source = nullptr;
  size_t bytes = 0;
  std::byte* ring = nullptr;
  std::shared_ptr<Mirrors> memory;  // memory of the ring
};

class Node : public TransportNode {
 public:
  Node(const char* name, const fsccl_transport_job_t& job);

  const char* name() const { return name_; }   // name of the transport
  bool checksum() const { return checksum_; }  // messages carry checksums
  // Returns true if bytes mostly leave in send(), so that sources need no copy before.
  virtual bool takes_at_once() const = 0;
  // Returns the largest slot that a channel chooses, which one message moves well.
  virtual size_t most_slot_bytes() const = 0;
  std::mutex& mutex() { return mutex_; }
  // Returns the name of a path (Channel::path).
  virtual const char* path(int) const { return nullptr; }

  // The following functions are called with the mutex held.
  void add(Channel* channel);  // delivers messages that came before the channel was open
  virtual void remove(Channel* channel);
  // Notes that these ranks do not know that this rank has closed the channel.
  void close_to(uint64_t meeting, std::vector<int32_t>&& unaware);
  // Sends a message. `more` says that the next message for this rank follows at once and may be
  // sent together with this one. The source of this one must not change until then.
  void send(int rank, const Header& header, Payload&& payload, bool more = false) noexcept;
  // Sends a failure. The header names the channel.
  void send_failure(int rank, Header header, const fsccl_transport_failure_t& failure) noexcept;
  virtual int take_path(Channel&, int, int) { return 1; }
  void woke() { woken_ = true; }  // something arrived for which a thread may sleep
  // broken(): nothing is sent to this rank or received from it any more. starved(): the reason is a
  // lack of memory on this rank. problem(): the text of another reason.
  bool broken(int rank) const { return links_[static_cast<size_t>(rank)].broken; }
  bool starved(int rank) const { return links_[static_cast<size_t>(rank)].starved; }
  const std::string& problem(int rank) const { return links_[static_cast<size_t>(rank)].problem; }

  // The following functions are called without the mutex.
  //
  // Moves the node on unless another thread does. The caller waits for `rank`, or for any rank if
  // it is -1.
  void poll(int rank);
  // Receives everything that has arrived, even if another thread is moving the node on.
  void hear_out();
  void need();  // says that a thread will sleep until a message arrives
  void rest();  // says that the caller stops polling
  // The number of threads that sleep until a message arrives, on whatever word.
  uint32_t sleepers = 0;

 protected:
  // A transport implements the following functions. They are called with the mutex held.
  virtual void post(int rank, const Header& header, Payload&& payload,
                    bool more) = 0;  // see send()
  // Ends the connection, if going on with it would put wrong bytes in the place of lost ones.
  virtual void drop(int rank) noexcept = 0;
  // Sends and receives what is possible now, beginning with this rank. Returns true if there was
  // anything.
  virtual bool advance(int rank) = 0;
  virtual bool flushed() = 0;  // returns true if all that was sent has left this rank
  // Makes events() ready as soon as there is something to do. Returns false if there is already.
  virtual bool arm() = 0;
  virtual int events() const = 0;
  // Returns true if peers may wait for answers that a node gives only while it is moved on. The
  // node's thread then does so from time to time when no thread polls.
  virtual bool owes_answers() const {
    // This load pairs with the store in close_to(): a thread that sees it wakes for answers.
    return closed_some_.load(std::memory_order_acquire);
  }
  virtual void interrupt() = 0;  // makes events() ready; called without the mutex
  // Fetches the bytes of an offer to `place`, or drops an offer that is not wanted. Only transports
  // whose ranks offer bytes have these two functions.
  virtual void fetch(int /*from*/, const Header& /*header*/, void* /*offer*/, size_t /*bytes*/,
                     std::byte* /*place*/, Channel& /*channel*/, int /*peer*/) {}
  virtual void drop_offer(void* /*offer*/) {}

  // Delivers a message that has arrived completely. If `offered`, `data` is an offer of the
  // transport, and the result says whether it is still in use.
  bool deliver(int from, const Header& header, void* data, size_t bytes, bool offered);
  // Returns the channel, or null if it is not open yet or is closed.
  Channel* find(uint64_t meeting) const;
  // Tells the sender that its list of ranks for this channel differs, unless it sent a failure.
  void refuse(int from, const Header& header);
  // Reports that a header from this rank is not what was sent.
  void damaged(int from, uint32_t sum, uint32_t meant);
  void broke(int rank, std::string why);
  // Runs `what`, which concerns this rank (-1: not known which). If memory is short, the connection
  // to this rank ends.
  template <class What>
  void spare(int rank, const What& what) noexcept {
    try {
      what();
    } catch (const std::bad_alloc&) {
      starve(rank);
    }
  }
  // Returns true if the message is for a channel that this rank has closed, or for a pair in such a
  // channel. A sender that does not know that this rank has left is told so.
  bool over(int from, const Header& header);
  // Returns true if this rank can keep so many bytes more of messages for a channel that is not
  // open yet. Otherwise it ends the connection to `from`. A caller that then takes memory for such
  // bytes counts them in early_bytes_ if counts_early() is true.
  bool can_keep(int from, const Header& header, size_t bytes);
  // Messages for a pair in an open channel are bounded by the ring of the pair, so they do not
  // count.
  bool counts_early(const Header& header) const { return !find(header.tag); }
  void drop_early();
  Status start_service();
  void stop_service();

  const int rank_, ranks_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Channel*> channels_;  // null: the channel was closed
  size_t early_bytes_ = 0;                           // memory for channels that are not open yet
  // Some rank may call this one in a channel that this rank has closed, and does not know it.
  std::atomic<bool> closed_some_{false};
  std::atomic<bool> unflushed_{false};  // something was sent since all had left

 private:
  // A message for a channel that this rank has not opened yet.
  struct Early {
    int from = 0;
    Header header{};
    std::vector<uint8_t> bytes;
    void* offer = nullptr;  // if it is not null, the transport has the bytes
    size_t offer_bytes = 0;
  };
  // The messages for one channel.
  struct Waiting {
    std::vector<Early> messages;
    size_t bytes = 0;    // memory that they take
    size_t counted = 0;  // the part of it that early_bytes_ counts
  };
  struct Link {
    bool broken = false, starved = false;
    std::string problem;
  };
  bool keep(int from, const Header& header, void* data, size_t bytes, bool offered);
  bool closed(uint64_t meeting) const;
  bool unaware(int from, const Header& header);
  void forget(const Waiting& waiting);
  bool move(int rank) noexcept;  // calls advance()
  void starve(int rank) noexcept;
  void tell_lost(int rank) noexcept;
  void wake();
  void serve();
  bool doze(const std::function<bool()>& wanted, int64_t ns);
  int take_turn();
  int serve_sleepers();

  const char* const name_;
  const bool checksum_;
  std::vector<Link> links_;  // by rank
  std::unordered_map<uint64_t, Waiting> early_;
  // By closed channel: the ranks that do not know that it is closed.
  std::unordered_map<uint64_t, std::vector<int32_t>> unaware_;

  // State of the service (node_service.cpp).
  std::mutex sleep_mutex_;
  Condition wake_;
  std::atomic<int64_t> needed_until_ns_{0};
  std::atomic<bool> leaving_{false};  // something has not left yet
  std::atomic<bool> dozing_{false}, stop_{false};
  std::atomic<uint32_t> polls_{0};
  bool woken_ = false;  // woke() was called since the thread's turn began; under the mutex
  Thread thread_;
};

}  // namespace fsccl::mirror
