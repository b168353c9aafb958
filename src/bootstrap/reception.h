// The door of a listener: accepts connections, takes them through the handshake and hands over
// those that have proved themselves. A connection at the door is a visitor. A visitor gets a few
// seconds and a few kilobytes, so strangers cannot keep others out. If too many visitors stand at
// the door, the one that has stood longest is dismissed once it has had its turn (kTurnMs), and new
// connections wait in the listener's queue until then.
//
// open() and close(), with what they call, run in the owner's threads, and any thread may call
// strangers(). All else runs in the service thread.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/socket.h"
#include "bootstrap/framed_socket.h"
#include "wire/handshake.h"

namespace fsccl {

// The most visitors that stand at the door at once.
inline constexpr size_t kMaxVisitors = 512;

struct Guest {
  Hello hello;
  std::shared_ptr<FramedSocket> channel;  // not watched by the reactor any more
  Status versions;                        // FSCCL_ERR_VERSION if the guest runs another version
  // the first message after the handshake; meaningless if the purpose is link or mend
  Frame request;
};

class Reception : public std::enable_shared_from_this<Reception> {
 public:
  using Admit = std::function<void(Guest guest)>;

  // `rank` is the rank that listens, or -1 for the rendezvous. A visitor of another job than `job`
  // is sent away without an answer, and may try again. The service thread calls `admit` for each
  // visitor that has passed the handshake and sent its request, if its purpose has one.
  static Result<std::shared_ptr<Reception>> open(const Credentials& credentials, uint64_t job,
                                                 int32_t rank, std::vector<Fd> listeners,
                                                 Admit admit);
  ~Reception() { close(); }
  void close();
  // Returns how many connections ended or were dismissed before they were admitted.
  int strangers() const { return strangers_; }

 private:
  struct Visitor {
    Visitor(Fd fd, const Credentials& credentials, uint64_t job, int32_t rank, const Nonce& nonce)
        : channel(std::make_shared<FramedSocket>(std::move(fd), kMaxRequestBytes)),
          handshake(credentials, job, rank, nonce) {}
    std::shared_ptr<FramedSocket> channel;
    HandshakeServer handshake;
    enum class Step { kHello, kProof, kRequest } step = Step::kHello;
    int64_t deadline_ns = 0;
    Frame request;
  };

  Reception(const Credentials& credentials, uint64_t job, int32_t rank, Admit admit)
      : credentials_(credentials), job_(job), rank_(rank), admit_(std::move(admit)) {}
  Status start(std::vector<Fd> listeners);
  void accept_all(int listener);
  Status greet(Fd fd);
  void on_readable(int fd);
  Result<bool> advance(Visitor& visitor);  // returns true if the handshake is over
  void dismiss(int fd, const Status& why);
  using Visitors = std::unordered_map<int, std::unique_ptr<Visitor>>;
  Visitors::iterator longest();  // returns the visitor that has stood longest; there must be one
  void pause(int64_t until_ns, bool crowded);
  void resume();
  int64_t on_timer();
  Status watch_listeners();

  const Credentials credentials_;
  const uint64_t job_;
  const int32_t rank_;
  const Admit admit_;
  std::mutex mutex_;  // guards what close() shares with the service thread
  bool closed_ = false;
  int hook_ = -1;
  std::vector<Fd> listeners_;
  Visitors visitors_;
  int64_t paused_until_ns_ = 0;  // when accepting goes on; 0: it is not paused
  bool crowded_ = false;         // paused because the door is full, else for want of descriptors
  std::atomic<int> strangers_{0};
};

}  // namespace fsccl
