// Fuzzes messages between ranks on different hosts, as any transport may deliver them
// (transports/mirror). They are for channels that are open, closed, of other ranks or not open yet,
// in any order, with any header, whole or in place. Their bytes are written to the mirror of the
// sender's ring or to their expected place, and nowhere else.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "tests/unit/transports/still_node.h"
#include "transports/mirror/channel.h"

namespace {

using namespace fsccl;
using namespace fsccl::mirror;
using Channel = fsccl::mirror::Channel;

constexpr int kRanks = 3, kOwn = 1;
constexpr size_t kExpectedBytes = 96, kMostBytes = 8192;
// Channel 7 is open, and 8 is opened and closed by actions of the input. 9 and 10 are never open.
constexpr uint64_t kMeetings[] = {7, 8, 9, 10};
constexpr std::byte kGuard{0x5a};

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : data_(data), left_(bytes) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() { return left_ ? (left_--, *data_++) : uint8_t{0}; }
  uint64_t number() {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// A node without a network. It counts the messages that are sent, and nothing answers them.
class Nowhere final : public StillNode {
 public:
  explicit Nowhere(const fsccl_transport_job_t& job) : StillNode("fuzzed", job) {}
  ~Nowhere() override { drop_early(); }
  // Delivers a message like a transport that has its bytes itself, or like one that asks first
  // where to put them.
  void whole(int from, const Header& header, void* data, size_t bytes) {
    const std::lock_guard lock(mutex());
    FUZZ_REQUIRE(!deliver(from, header, data, bytes, false));
  }
  void in_place(int from, const Header& header, const void* data, size_t bytes) {
    const std::lock_guard lock(mutex());
    Channel* const channel = find(header.channel);
    if (!channel || (header.kind != MessageKind::bytes && header.kind != MessageKind::line)) return;
    if (channel->tag() != header.tag) return refuse(from, header);
    const int peer = channel->member(from);
    std::byte* const place = peer < 0 ? nullptr : channel->place(peer, header, bytes, true);
    if (!place) return;
    std::memcpy(place, data, bytes);
    channel->landed(peer, header, place, bytes);
  }
  void lose(int rank) {
    const std::lock_guard lock(mutex());
    broke(rank, "it was lost");
  }
  bool gone(int rank) {
    const std::lock_guard lock(mutex());
    return broken(rank);
  }

 protected:
  void post(int rank, const Header&, Payload&& payload, bool) override {
    FUZZ_REQUIRE(rank >= 0 && rank < kRanks && (!payload.ring || payload.memory));
  }
  void fetch(int, const Header&, void*, size_t, std::byte*, Channel&, int) override { abort(); }
  void drop_offer(void*) override { abort(); }
};

class World {
 public:
  explicit World(bool checksum)
      : job_{sizeof job_, kOwn, kRanks, key_, checksum}, node_(job_), first_(open(0)) {}
  ~World() {
    for (const auto& place : places_)
      // Not a byte beyond the expected ones has changed.
      FUZZ_REQUIRE(place.front() == kGuard && place.back() == kGuard);
    // The sizes are those of this rank's own ring, to which no message may write.
    size_t ring = 0, slot = 0;
    const std::byte* const own = first_->slots(kOwn, &ring, &slot);
    FUZZ_REQUIRE(std::all_of(own, own + ring, [](std::byte byte) { return byte == std::byte{0}; }));
  }

  void act(Input& input) {
    Channel& channel = second_ && input.byte() % 2 ? *second_ : *first_;
    switch (input.byte() % 8) {
      case 0: {
        std::vector<std::byte>& place = places_.emplace_back(kExpectedBytes + 2, kGuard);
        channel.expect(2, input.byte(), input.byte() * 64u, place.data() + 1, kExpectedBytes);
        return;
      }
      case 1:
        second_ = second_ ? nullptr : closed_ ? nullptr : open(1);
        closed_ |= !second_;
        return;
      case 2:
        return use(channel, 1u + input.byte());  // an engine's first tick is 1
      case 3:
        if (input.byte() == 0) node_.lose(2);
        return;
      default:
        message(input);
    }
  }

 private:
  std::unique_ptr<Channel> open(size_t which) {
    Channel::Setup setup;
    setup.node = &node_;
    setup.meeting = setup.tag = kMeetings[which];
    setup.rank = kOwn;
    setup.members = {0, 1, 2};
    setup.slot_bytes = 4096;
    setup.board = std::make_shared<Board>();
    Result<std::unique_ptr<Channel>> opened = Channel::open(std::move(setup));
    FUZZ_REQUIRE(opened.ok());
    return opened.take();
  }

  static void use(Channel& channel, uint32_t tick) {
    if (const fsccl_transport_line_t* line = channel.poll(2, tick))
      FUZZ_REQUIRE(line->tick == tick && line->processor == -1);
    (void)channel.placed(2, tick, 0, kExpectedBytes);
    if (channel.left(2)) FUZZ_REQUIRE(channel.left(2));
    if (const fsccl_transport_failure_t* failure = channel.failure())
      FUZZ_REQUIRE(strnlen(failure->text, sizeof failure->text) < sizeof failure->text);
  }

  void message(Input& input) {
    static std::vector<std::byte> bytes(kMostBytes, std::byte{1});
    Header header{};
    const uint8_t odd = input.byte();
    header.channel = kMeetings[odd % 4];
    header.tag = odd & 16 ? input.number() : header.channel;
    header.kind = static_cast<MessageKind>(odd & 32 ? input.byte() : input.byte() % 4);
    header.at = odd & 64 ? input.number() : input.byte() * 64u;
    header.sent = odd & 128 ? input.number() : input.byte() % 2 ? kExpectedBytes : 0;
    header.line.tick = odd & 8 ? static_cast<uint32_t>(input.number()) : input.byte();
    const uint8_t size = input.byte();
    const size_t length = header.kind == MessageKind::failure && size % 8
                              ? sizeof(fsccl_transport_failure_t)
                          : size % 4 ? kExpectedBytes
                                     : size * 32u;
    const int from = odd & 4 ? 0 : 2;
    if (node_.gone(from)) return;  // a transport delivers nothing from a rank that is gone
    if (input.byte() % 2)
      node_.in_place(from, header, bytes.data(), length);
    else
      node_.whole(from, header, bytes.data(), length);
  }

  unsigned char key_[32] = {1};
  fsccl_transport_job_t job_;
  std::vector<std::vector<std::byte>> places_;
  Nowhere node_;
  std::unique_ptr<Channel> first_, second_;
  bool closed_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  constexpr int kMostActions = 200;
  Input input(data, bytes);
  World world(input.byte() % 4 == 0);
  for (int i = 0; i < kMostActions && !input.empty(); i++) world.act(input);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  // These are the bytes of actions. The first two choose the channel and the action. In a message
  // these follow: what is odd, kind, at, sent, tick, size, how.
  using Text = std::string;
  const Text expect{0, 0, 5, 1}, open{0, 1}, look{0, 2, 4}, lose{0, 3, 0};
  const Text in_place{0, 4, 0, 1, 1, 1, 5, 1, 1}, other_place{0, 4, 0, 1, 2, 1, 5, 1, 1},
      bytes{0, 4, 0, 0, 1, 1, 5, 1, 0};
  const Text early{0, 4, 1, 1, 1, 1, 5, 1, 0}, left{0, 4, 0, 3, 0, 0, 0, 0, 0},
      failure{0, 4, 0, 2, 0, 0, 0, 1, 0};
  Text outside{0, 4, 64, 1};
  outside += Text(8, '\xff') + Text{1, 5, 1, 1};
  const Text begin(1, '\1');
  return {
      begin + expect + in_place + look,        begin + expect + other_place + look + left,
      begin + early + open + look + open,      begin + expect + bytes + failure + in_place + look,
      begin + expect + outside + look,         begin + early + lose + look,
      Text(1, '\0') + expect + in_place + look};
}
