// When the thread of a node moves it on, and when it leaves that to others.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "transports/mirror/node.h"

namespace fsccl::mirror {
namespace {

// A node in which something comes whenever it is moved on, that somebody slept for.
class BusyNode final : public Node {
 public:
  explicit BusyNode(const fsccl_transport_job_t& job) : Node("busy", job), events_(eventfd(1, EFD_CLOEXEC)) {
    unflushed_ = true;
    start_service();
  }
  ~BusyNode() override {
    stop_service();
    ::close(events_);
  }
  Status connect(const uint8_t*, size_t) override { return success(); }
  bool takes_at_once() const override { return true; }
  size_t most_slot_bytes() const override { return 4096; }
  void send(int, const Header&, Payload, bool) override {}
  std::atomic<int> turns{0}, longest{0};

 protected:
  bool advance(int) override {
    moves_++;
    woke();
    return true;
  }
  bool flushed() override {  // asked for once behind each turn of the thread
    if (moves_ > longest) longest = moves_;
    if (moves_) turns++;
    moves_ = 0;
    return turns > 3;
  }
  bool arm() override { return true; }
  int events() const override { return events_; }
  void interrupt() override {}
  void fetch(int, const Header&, void*, size_t, std::byte*, Channel&, int) override {}
  void release(void*) override {}

 private:
  const int events_;
  int moves_ = 0;
};

// Who is woken goes on by itself, perhaps on the thread's core.
TEST(MirrorService, LeavesTheRestToWhomItWoke) {
  constexpr unsigned char key[32] = {};
  BusyNode node({sizeof(fsccl_transport_job_t), 0, 2, key, 0});
  node.rest();
  while (node.turns <= 3) std::this_thread::yield();
  EXPECT_EQ(node.longest, 1);
}

}  // namespace
}  // namespace fsccl::mirror
