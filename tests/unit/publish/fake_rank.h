// A publishing rank in the process of a test. It says only what the test tells it to say, so the
// test decides in which order messages come, and which of them never come.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "bootstrap/reception.h"
#include "bootstrap/unique_id.h"
#include "kernels/crc32c.h"
#include "publish/catalog.h"
#include "publish/key.h"
#include "publish/messages.h"

namespace fsccl::publish {

inline IpAddress local_ip(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last};
}

// No subscriber is on this host, so all of them come over TCP.
inline constexpr uint64_t kFakeHost = 77;
inline constexpr int64_t kPatienceMs = 30'000;

class FakeRank {
 public:
  // With port 0 the system chooses one.
  FakeRank(const PublicationKey& key, int rank, uint16_t port = 0) : key_(key) {
    Result<Fd> listener = listen_tcp(port);
    EXPECT_TRUE(listener.ok());
    port_ = port_of(local_address(listener.value().get()));
    std::vector<Fd> listeners;
    listeners.push_back(listener.take());
    Result<std::shared_ptr<Reception>> opened =
        Reception::open(key.credentials, key.number, rank, std::move(listeners),
                        [this](Guest guest) { welcome(std::move(guest)); });
    EXPECT_TRUE(opened.ok());
    reception_ = opened.take();
  }
  ~FakeRank() { close(); }
  FakeRank(const FakeRank&) = delete;
  FakeRank& operator=(const FakeRank&) = delete;

  uint16_t port() const { return port_; }
  RankAddress address() const { return {kFakeHost, {}, port_, {local_ip(1)}}; }
  // Every guest is sent these bytes at once.
  void give(Bytes catalog) {
    const std::lock_guard lock(mutex_);
    catalog_ = std::move(catalog);
  }
  // Nobody listens any more. The connections that there are stay open.
  void close() { reception_->close(); }

  // Returns the connection that a subscriber has made, the first of them with number 0.
  FramedSocket& guest(size_t number) {
    std::unique_lock lock(mutex_);
    const bool came = came_.wait_for(lock, std::chrono::milliseconds(kPatienceMs),
                                     [&] { return guests_.size() > number; });
    EXPECT_TRUE(came) << "guest " << number << " has not come";
    if (!came) std::abort();
    return *guests_[number];
  }
  void hang_up(size_t number) { guest(number) = FramedSocket(); }

  void say(size_t number, FrameType type, const Bytes& payload) {
    EXPECT_TRUE(guest(number).send(type, payload, Deadline::in_ms(kPatienceMs)).ok());
  }
  Bytes hears(size_t number, FrameType type) {
    Result<Bytes> heard = guest(number).expect(type, Deadline::in_ms(kPatienceMs));
    EXPECT_TRUE(heard.ok()) << heard.status().text();
    return heard.ok() ? heard.take() : Bytes(16);
  }
  Want hears_want(size_t number) { return decode_want(hears(number, FrameType::kWant)).take(); }
  uint64_t hears_have(size_t number) {
    return decode_version(hears(number, FrameType::kHave), "Have").take();
  }
  // Sends the first `bytes` of a whole copy, or all of them. The words are fewer than a block.
  void say_copy(size_t number, uint64_t version, const std::vector<uint16_t>& words,
                size_t bytes = SIZE_MAX) {
    const uint32_t sum = crc32c(words.data(), 2 * words.size());
    const VersionHead head{0, version, 10 * version, whole_bytes(words.size()),
                           crc32c(&sum, sizeof sum)};
    say(number, FrameType::kVersion, encode(head));
    Bytes copy = ByteWriter().put(sum).put_raw(words.data(), 2 * words.size()).take();
    copy.resize(std::min(bytes, copy.size()));
    EXPECT_EQ(send_some(guest(number).fd(), copy.data(), copy.size()).value(), copy.size());
  }

 private:
  void welcome(Guest guest) {
    const std::lock_guard lock(mutex_);
    guest.channel->queue(FrameType::kCatalog, catalog_);
    (void)guest.channel->pump_out().ok();
    guests_.push_back(std::move(guest.channel));
    came_.notify_all();
  }

  const PublicationKey key_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::condition_variable came_;
  Bytes catalog_;
  std::vector<std::shared_ptr<FramedSocket>> guests_;
  std::shared_ptr<Reception> reception_;
};

}  // namespace fsccl::publish
