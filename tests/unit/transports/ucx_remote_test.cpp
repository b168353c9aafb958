// Tests puts and gets between the mirrors of two ranks: which bytes go that way and which do not,
// that nothing outside the mirrors is touched whatever a peer sends, and that memory is given up
// only when no peer can reach it any more.
#include <gmock/gmock.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "base/config.h"
#include "ucx_ranks.h"

namespace fsccl::ucx {
namespace {

// A count that the threads of all nodes increment.
struct Count : std::atomic<int> {
  Count& operator=(const Count& other) {
    store(other);
    return *this;
  }
};

// The calls of UCX by all ranks in this process, and how the test changes them.
struct Calls {
  Count puts, gets, maps, unmaps, keys_destroyed;
  Count said[7];  // messages of each Act
  bool no_maps = false, no_keys = false;
  bool spoil = false;          // changes bytes on their way
  std::optional<uint64_t> at;  // a wrong place that is announced for bytes
  bool hold_flushes = false;
  ucp_send_nbx_callback_t held = nullptr;
  void* held_user = nullptr;
  bool refuse_sends = false, hold_sends = false;
  std::vector<void*> held_sends;
};
Calls calls;
std::atomic<bool> nothing_comes{false};  // no rank of this process receives anything
char held_send;

// An endpoint that is being closed, and a message that comes just then.
struct Closing {
  std::function<void()> begins;
  std::atomic<ucp_ep_h> endpoint{nullptr};
  std::atomic<bool> over{false}, used{false};
  ucp_am_recv_callback_t take = nullptr;
};
Closing closing;
char closing_request;

struct Way {
  const char* name;
  Count Calls::* transfers;
};

class UcxRemoteTest : public UcxRanks, public ::testing::WithParamInterface<Way> {
 protected:
  UcxRemoteTest() {
    calls = {};
    EXPECT_TRUE(config_set("FSCCL_UCX_PATH", GetParam().name).ok());
  }
  ~UcxRemoteTest() override { EXPECT_TRUE(config_set("FSCCL_UCX_PATH", "auto").ok()); }

  void wrap(UcxLibrary& library) override {
    library.put_nbx = [](ucp_ep_h endpoint, const void* source, auto... rest) {
      calls.puts++;
      if (calls.spoil) *static_cast<uint8_t*>(const_cast<void*>(source)) ^= 1;
      return real().put_nbx(endpoint, source, rest...);
    };
    library.get_nbx = [](ucp_ep_h endpoint, void* place, size_t bytes, uint64_t there,
                         auto... rest) {
      calls.gets++;
      if (calls.spoil) *reinterpret_cast<uint8_t*>(there) ^= 1;
      return real().get_nbx(endpoint, place, bytes, there, rest...);
    };
    library.worker_progress = [](ucp_worker_h worker) {
      return nothing_comes ? 0 : real().worker_progress(worker);
    };
    library.mem_map = [](auto... arguments) {
      return calls.maps++, calls.no_maps ? UCS_ERR_NO_MEMORY : real().mem_map(arguments...);
    };
    library.mem_unmap = [](auto... arguments) {
      return calls.unmaps++, real().mem_unmap(arguments...);
    };
    library.rkey_unpack = [](auto... arguments) {
      return calls.no_keys ? UCS_ERR_UNREACHABLE : real().rkey_unpack(arguments...);
    };
    library.rkey_destroy = [](auto... arguments) {
      calls.keys_destroyed++, real().rkey_destroy(arguments...);
    };
    library.am_send_nbx = [](ucp_ep_h endpoint, unsigned id, const void* header,
                             size_t header_bytes, const void* data, size_t bytes,
                             const ucp_request_param_t* param) -> ucs_status_ptr_t {
      Envelope& envelope = *static_cast<Envelope*>(const_cast<void*>(header));
      calls.said[static_cast<size_t>(envelope.act)]++;
      if (endpoint == closing.endpoint) closing.used = true;
      if (calls.at && (envelope.act == Act::arrived || envelope.act == Act::offer))
        envelope.header.at = *calls.at;
      if (calls.refuse_sends)
        return reinterpret_cast<ucs_status_ptr_t>(static_cast<intptr_t>(UCS_ERR_CONNECTION_RESET));
      if (!calls.hold_sends)
        return real().am_send_nbx(endpoint, id, header, header_bytes, data, bytes, param);
      calls.held = param->cb.send;
      calls.held_sends.push_back(param->user_data);
      return &held_send;
    };
    library.ep_flush_nbx = [](ucp_ep_h endpoint,
                              const ucp_request_param_t* param) -> ucs_status_ptr_t {
      if (!calls.hold_flushes) return real().ep_flush_nbx(endpoint, param);
      calls.held = param->cb.send;
      calls.held_user = param->user_data;
      static int one;
      return &one;
    };
  }
  int said(Act act) const { return calls.said[static_cast<size_t>(act)]; }
  int transfers() const { return calls.*GetParam().transfers; }
  void move_on() {
    for (auto& node : nodes_)
      if (node) node->poll(-1);
  }
  // Sends until the ranks know each other's keys. Leaves the next tick in next_.
  void get_to_know() {
    while (transfers() == 0) {
      send(next_, 0);
      receive(next_++);
      move_on();  // keys may come after these bytes, for which receive() does not wait
    }
  }
  uint32_t next_ = 1;
};

TEST_P(UcxRemoteTest, BytesGoThatWayOnceTheKeysAreThere) {
  get_to_know();
  EXPECT_GT(said(Act::message), 0);  // bytes went in messages before the keys were there
  const int before = transfers();
  for (int from : {0, 1})
    for (uint32_t i = 0; i < 9; i++) {
      sent_.fill(static_cast<std::byte>(10 + 10 * from + i));
      const uint32_t tick = from == 0 ? next_ + i : 1 + i;
      send(tick, i * sent_.size(), from);
      receive(tick, 1 - from);
      EXPECT_EQ(std::memcmp(mirror(i * sent_.size(), 1 - from), sent_.data(), sent_.size()), 0)
          << from << " " << i;
    }
  EXPECT_EQ(transfers() - before, 18);
  EXPECT_EQ(calls.maps, 2);  // each rank has registered its memory once
}

TEST_P(UcxRemoteTest, WhatIsWantedElsewhereIsInTheMirror) {
  get_to_know();
  channels_[1]->expect(0, next_, 4096, wanted_.data(), wanted_.size());
  send(next_, 4096);
  receive(next_);
  EXPECT_FALSE(channels_[1]->placed(0, next_, 4096, wanted_.size()));
  EXPECT_EQ(std::memcmp(mirror(4096), sent_.data(), sent_.size()), 0);
  EXPECT_EQ(wanted_[0], std::byte{0});
}

TEST_P(UcxRemoteTest, PlacesOutsideTheMirrorEndTheChannel) {
  get_to_know();
  size_t ring = 0, slot = 0;
  channels_[1]->slots(0, &ring, &slot);
  const int gets = calls.gets;
  calls.at = ring - sent_.size() + 1;
  send(next_, 0);
  const fsccl_transport_failure_t* here = nullptr;
  while (!(here = channels_[1]->failure())) move_on();
  EXPECT_EQ(here->code, FSCCL_ERR_PROTOCOL);
  EXPECT_THAT(here->text, ::testing::HasSubstr("of a ring of"));
  EXPECT_EQ(calls.gets, gets);
}

// A key to memory that is not registered, or of another library, is of no use, and the bytes go in
// messages.
TEST_P(UcxRemoteTest, WithoutMemoryOrKeysTheyGoInMessages) {
  for (const bool maps : {false, true}) {
    calls.no_maps = !maps;
    calls.no_keys = true;
    for (int i = 0; i < 5; i++) {
      send(next_, 0);
      receive(next_++);
      EXPECT_EQ(std::memcmp(mirror(0), sent_.data(), sent_.size()), 0);
    }
    EXPECT_EQ(transfers(), 0);
    EXPECT_LE(said(Act::key), 2);  // ranks do not send keys again and again
    for (int rank : {0, 1}) {
      channels_[rank].reset();
      open(rank, 8);
    }
    next_ = 1;
  }
}

TEST_P(UcxRemoteTest, MemoryStaysUntilItsKeysHaveComeBack) {
  get_to_know();
  const int told = said(Act::key);
  channels_[1].reset();
  while (said(Act::returned) == 0) move_on();
  for (int i = 0; i < 100; i++) move_on();
  // Rank 0 could still write to rank 1's memory, so rank 1 must keep it registered.
  EXPECT_EQ(calls.unmaps, 0);
  channels_[0].reset();
  while (calls.unmaps < 2) move_on();
  EXPECT_EQ(said(Act::returned), told);
  EXPECT_EQ(calls.keys_destroyed, 2);
}

constexpr std::array kWays{Way{"put", &Calls::puts}, Way{"get", &Calls::gets}};
std::string name_of(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Ways, UcxRemoteTest, ::testing::ValuesIn(kWays), name_of);

class UcxRemoteChecksumTest : public UcxRemoteTest {
 protected:
  UcxRemoteChecksumTest() { checksum_ = 1; }
};

TEST_P(UcxRemoteChecksumTest, BytesThatChangeOnTheWayEndTheChannel) {
  get_to_know();
  calls.spoil = true;
  send(next_, 0);
  const fsccl_transport_failure_t* here = nullptr;
  while (!(here = channels_[1]->failure())) move_on();
  EXPECT_THAT(here->text, ::testing::HasSubstr("rank 1 got 65536 bytes"));
  EXPECT_THAT(here->text, ::testing::HasSubstr("that changed on the way"));
}

INSTANTIATE_TEST_SUITE_P(Ways, UcxRemoteChecksumTest, ::testing::ValuesIn(kWays), name_of);

class UcxPutTest : public UcxRemoteTest {};

// The receiver learns of a put only when its bytes are there, and no rank's memory is freed before.
TEST_P(UcxPutTest, WhatIsUnderWayKeepsTheMemory) {
  get_to_know();
  calls.hold_flushes = true;
  send(next_, 0);
  for (int i = 0; i < 100; i++) move_on();
  EXPECT_EQ(channels_[1]->poll(0, next_), nullptr);
  for (auto& channel : channels_) channel.reset();
  for (int i = 0; i < 1000; i++) move_on();
  EXPECT_EQ(calls.unmaps, 0);
  calls.hold_flushes = false;
  ASSERT_TRUE(calls.held);
  const int arrived = said(Act::arrived);
  {
    const std::lock_guard lock(nodes_[0]->mutex());
    calls.held(nullptr, UCS_OK, calls.held_user);
  }
  EXPECT_EQ(said(Act::arrived), arrived + 1);
  while (calls.unmaps < 2) move_on();
}

INSTANTIATE_TEST_SUITE_P(Ways, UcxPutTest, ::testing::Values(kWays[0]), name_of);

class UcxGetTest : public UcxRemoteTest {
 protected:
  UcxGetTest() { ranks_ = 3; }
};

// An offer is answered even if the receiver has left, so the sender can free its memory then.
TEST_P(UcxGetTest, AnOfferToWhoHasLeftIsAnswered) {
  get_to_know();
  const int before = said(Act::got);
  nothing_comes = true;  // otherwise rank 0 would learn that the memory is gone, and not offer
  channels_[1].reset();
  send(next_, 0);
  nothing_comes = false;
  while (said(Act::got) == before) move_on();
}

// An offer that could not be sent, because the peer has died, is given up exactly once. Otherwise
// two later messages could share its entry.
TEST_P(UcxGetTest, AnOfferThatDidNotLeaveIsOverOnce) {
  get_to_know();
  {
    const std::lock_guard lock(nodes_[0]->mutex());
    calls.refuse_sends = true;
  }
  send(next_, 0);
  EXPECT_GT(said(Act::offer), 0);
  nodes_[0]->rest();
  const std::lock_guard lock(nodes_[0]->mutex());
  EXPECT_TRUE(nodes_[0]->broken(1));
  calls.refuse_sends = false;
  calls.hold_sends = true;
  for (int i = 0; i < 2; i++) nodes_[0]->send(2, {}, {}, false);
  ASSERT_EQ(calls.held_sends.size(), 2);
  EXPECT_NE(calls.held_sends[0], calls.held_sends[1]);
  calls.hold_sends = false;
  for (void* sending : calls.held_sends) calls.held(nullptr, UCS_OK, sending);
}

INSTANTIATE_TEST_SUITE_P(Ways, UcxGetTest, ::testing::Values(kWays[1]), name_of);

class UcxLeaveTest : public UcxRemoteTest {
 protected:
  void wrap(UcxLibrary& library) override {
    UcxRemoteTest::wrap(library);
    closing.endpoint = nullptr;
    closing.over = closing.used = false;
    library.ep_close_nbx = [](ucp_ep_h endpoint,
                              const ucp_request_param_t* param) -> ucs_status_ptr_t {
      if (!closing.begins) return real().ep_close_nbx(endpoint, param);
      closing.endpoint = endpoint;
      std::exchange(closing.begins, nullptr)();
      return &closing_request;
    };
    library.request_check_status = [](void* request) {
      if (request != &closing_request) return real().request_check_status(request);
      return closing.over ? UCS_OK : UCS_INPROGRESS;
    };
    library.request_free = [](void* request) {
      if (request != &closing_request) real().request_free(request);
    };
    library.worker_set_am_recv_handler = [](ucp_worker_h worker,
                                            const ucp_am_handler_param_t* param) {
      ucp_am_handler_param_t handler = *param;
      closing.take = param->cb;
      handler.cb = [](void* self, const void* header, auto... rest) {
        const ucs_status_t status = closing.take(self, header, rest...);
        Act act;  // is copied, because a header may be unaligned
        std::memcpy(&act, static_cast<const std::byte*>(header) + offsetof(Envelope, act),
                    sizeof act);
        if (closing.endpoint && (act == Act::offer || act == Act::key)) closing.over = true;
        return status;
      };
      return real().worker_set_am_recv_handler(worker, &handler);
    };
  }
};

// An offer or a key that comes while a rank leaves is not answered, because UCX may have destroyed
// the endpoint.
TEST_P(UcxLeaveTest, WhatComesWhileARankLeavesIsNotAnswered) {
  get_to_know();
  channels_[1].reset();
  closing.begins = [this] { send(next_, 0); };
  nodes_[1].reset();
  EXPECT_TRUE(closing.over);
  EXPECT_FALSE(closing.used);
}

INSTANTIATE_TEST_SUITE_P(Ways, UcxLeaveTest, ::testing::Values(kWays[1]), name_of);

}  // namespace
}  // namespace fsccl::ucx
