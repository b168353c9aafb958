// Tests the watch of streams: a watched stream ends before its deadline, or the watch reports that
// it does not. The service thread makes no call of the driver for this.
#include "comm/device/stream_watch.h"

#include <chrono>
#include <thread>

#include "tests/unit/on_device.h"

namespace fsccl::testing {
namespace {

class Watches : public OnDevice {
 protected:
  void TearDown() override {
    expect_what_is_left();  // watches keep memory, to some of which streams may still write
    OnDevice::TearDown();
  }
  std::unique_ptr<StreamWatch> watch(int64_t timeout_ms) {
    StreamWatch::Hooks hooks;
    hooks.look = [this] {
      looked++;
      return success();
    };
    hooks.end = [this](const Status& why) {
      said = why.text();
      ended++;
    };
    hooks.describe_late = [] { return std::string("what was put there"); };
    auto made = StreamWatch::create(gpu(), timeout_ms, std::move(hooks));
    EXPECT_TRUE(made.ok());
    return made.take();
  }
  static void follow(StreamWatch& watch, const TestStream& stream) {
    const cuda::Current current(gpu());
    EXPECT_TRUE(watch.follow(stream).ok());
  }
  static void wait_until_idle(StreamWatch& watch) {
    while (!watch.idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<int> looked{0}, ended{0};
  std::string said;
};

// A call of the driver may wait for a call of another thread. The service thread must not wait like
// that, because it enforces the deadline that would end both.
TEST_F(Watches, TheServiceThreadAsksTheDriverNothing) {
  HostPage page;
  TestStream a;
  const auto watch = this->watch(60'000);
  page.hold(a, 0);
  follow(*watch, a);
  const uint64_t before = control.calls();
  while (looked < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(control.calls(), before);
  EXPECT_FALSE(watch->idle());
  page.word(0) = 1;
  wait_until_idle(*watch);
  EXPECT_EQ(control.calls(), before);
  for (int i = 0; i < 3000; i++) follow(*watch, a);  // more than there are words at first
  wait_until_idle(*watch);
  EXPECT_EQ(ended, 0);
}

TEST_F(Watches, WhatIsLateEndsOnce) {
  HostPage page;
  TestStream a;
  const auto watch = this->watch(100);
  follow(*watch, a);
  wait_until_idle(*watch);
  page.hold(a, 0);
  follow(*watch, a);
  while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(watch->idle());
  EXPECT_NE(said.find("what was put there was not over in 100 ms"), std::string::npos) << said;
  page.word(0) = 1;
  a.finish();
  EXPECT_EQ(ended, 1);
}

TEST_F(Watches, WordsThatAStreamMayWriteYetAreNobodyElses) {
  HostPage page;
  TestStream a, b;
  auto first = watch(60'000);
  page.hold(a, 0);
  follow(*first, a);
  first.reset();
  const auto second = watch(60'000);
  page.hold(b, 1);
  follow(*second, b);
  page.word(0) = 1;
  a.finish();
  while (looked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(second->idle());
  page.word(1) = 1;
  wait_until_idle(*second);
}

}  // namespace
}  // namespace fsccl::testing
