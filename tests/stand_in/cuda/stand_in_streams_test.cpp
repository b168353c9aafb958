// The stand-in's streams, and what they and captures of them keep other calls from.
#include <chrono>
#include <memory>
#include <thread>

#include "on_stand_in.h"
#include "tests/conformance/capture.h"

namespace fsccl::cuda {
namespace {

TEST_F(StandIn, AStreamIsInOrderAndTwoAreNot) {
  close(a, 0);
  ASSERT_EQ(d().fill_async(memory, 1, 4, a), kSuccess);
  ASSERT_EQ(d().fill_async(memory, 2, 4, b), kSuccess);
  ASSERT_EQ(d().stream_synchronize(b), kSuccess);
  EXPECT_FALSE(idle(a));
  EXPECT_EQ(*words(memory), 0x02020202u);
  gates[0] = 1;
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  EXPECT_EQ(*words(memory), 0x01010101u);
}

TEST_F(StandIn, AnEventStandsForWhatWasPutBeforeItWasRecorded) {
  Event event = nullptr;
  ASSERT_EQ(d().event_create(&event, kEventWithoutTime), kSuccess);
  EXPECT_EQ(d().event_query(event), kSuccess) << "never recorded";
  close(a, 0);
  ASSERT_EQ(d().event_record(event, a), kSuccess);
  close(a, 1);
  EXPECT_EQ(d().event_query(event), kNotReady);
  ASSERT_EQ(d().stream_wait_event(b, event, 0), kSuccess);
  ASSERT_EQ(d().event_record(event, a), kSuccess) << "what b waits for stays";
  EXPECT_FALSE(idle(b));
  gates[0] = 1;
  ASSERT_EQ(d().stream_synchronize(b), kSuccess);
  EXPECT_EQ(d().event_query(event), kNotReady);
  ASSERT_EQ(d().event_destroy(event), kSuccess);
  EXPECT_EQ(d().event_query(event), kInvalidHandle);
}

TEST_F(StandIn, TheDefaultStreamIsBeforeAndBehindThoseThatBlock) {
  Stream blocking = nullptr;
  ASSERT_EQ(d().stream_create(&blocking, 0, 0), kSuccess);
  close(blocking, 0);
  close(a, 1);
  ASSERT_EQ(d().fill_async(memory, 3, 4, nullptr), kSuccess);
  EXPECT_FALSE(idle(nullptr)) << "behind `blocking`, whose gate is closed";
  ASSERT_EQ(d().fill_async(memory + 4, 3, 4, blocking), kSuccess);
  gates[0] = 1;
  ASSERT_EQ(d().stream_synchronize(nullptr), kSuccess);
  EXPECT_FALSE(idle(a)) << "neither waits for it";
  EXPECT_EQ(*words(memory), 0x03030303u);
  ASSERT_EQ(d().stream_synchronize(blocking), kSuccess);
  gates[0] = 0;
  close(nullptr, 0);
  ASSERT_EQ(d().fill_async(memory, 4, 4, blocking), kSuccess);
  EXPECT_FALSE(idle(blocking)) << "behind the default stream";
  gates[0] = 1;
  ASSERT_EQ(d().stream_synchronize(blocking), kSuccess);
  ASSERT_EQ(d().stream_destroy(blocking), kSuccess);
}

TEST_F(StandIn, ValuesAreComparedInACircle) {
  MemoryOperation operations[3];
  *words(memory) = 5;
  operations[0] = {kWaitValue32, memory, 0xfffffff0u};  // 5 is 21 behind it
  operations[1] = {kWriteValue32, memory, 7};
  operations[2] = {kWriteValue64, memory + 8, uint64_t{1} << 40};
  ASSERT_EQ(d().stream_values(a, 3, operations, 0), kSuccess);
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  EXPECT_EQ(*words(memory), 7u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(memory + 8), uint64_t{1} << 40);
  operations[0] = {kWaitValue64, memory + 8, (uint64_t{1} << 40) + 1};
  ASSERT_EQ(d().stream_values(a, 1, operations, 0), kSuccess);
  EXPECT_FALSE(idle(a));
  operations[0].operation = kWriteValue64;
  ASSERT_EQ(d().stream_values(b, 1, operations, 0), kSuccess);
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  operations[0] = {kWaitValue32, memory + 2, 0};
  EXPECT_EQ(d().stream_values(a, 1, operations, 0), kInvalidValue) << "not aligned";
  uint32_t plain = 0;
  operations[0] = {kWriteValue32, address_of(&plain), 1};
  EXPECT_EQ(d().stream_values(a, 1, operations, 0), kInvalidValue) << "not registered";
}

TEST_F(StandIn, OrdinaryMemoryMakesACopyWaitUnlessItIsASmallSource) {
  uint32_t small = 11;
  close(a, 0);
  ASSERT_EQ(d().copy_async(memory, address_of(&small), 4, a), kSuccess);
  small = 12;  // the copy has it already
  gates[0] = 1;
  uint32_t back = 0;
  ASSERT_EQ(d().copy_async(address_of(&back), memory, 4, a), kSuccess);
  EXPECT_EQ(back, 11u) << "and it is there when the call returns";
}

// What the call waits for may need one of another thread's: such a pair never ends on a GPU.
TEST_F(StandIn, ACopyToOrdinaryMemoryKeepsOtherThreadsOutOfTheDriver) {
  for (const bool another_calls : {false, true}) {
    gates[0] = 0;
    close(a, 0);
    uint32_t back = 0;
    const uint64_t before = control.calls("cuMemcpyAsync");
    std::thread copying([&] {
      const Current own(*device);
      EXPECT_EQ(d().copy_async(address_of(&back), memory, 4, a), kSuccess);
    });
    while (control.calls("cuMemcpyAsync") == before) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (another_calls)
      // once the rule is broken: it would not come back else
      EXPECT_EQ(d().stream_query(b), kSuccess);
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const std::string broken = control.broken_rules();
    gates[0] = 1;
    copying.join();
    EXPECT_EQ(broken.find("ordinary host memory") != std::string::npos, another_calls) << broken;
  }
}

TEST_F(StandIn, AQueueIsFiniteAndAStreamThatIsDestroyedIsWorkedOff) {
  Stream stream = nullptr;
  ASSERT_EQ(d().stream_create(&stream, kNonBlockingStream, 0), kSuccess);
  close(stream, 0);
  for (int i = 0; i < 300; i++) ASSERT_EQ(d().fill_async(memory, 7, 4, stream), kSuccess);
  EXPECT_EQ(control.broken_rules(), "");
  for (std::string broken; broken.empty(); broken = control.broken_rules())
    ASSERT_EQ(d().fill_async(memory, 8, 4, stream), kSuccess);
  ASSERT_EQ(d().stream_destroy(stream), kSuccess);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gates[0] = 1;
  });
  EXPECT_EQ(d().synchronize(), kSuccess);
  EXPECT_EQ(*words(memory), 0x08080808u);
  opener.join();
}

TEST_F(StandIn, AFunctionOfTheHostRunsInItsTurnAndMayNotCallCuda) {
  struct Seen {
    std::atomic<int> calls{0};
    Code code = 0;
  } seen;
  const auto function = [](void* context) {
    int count = 0;
    static_cast<Seen*>(context)->code = d().device_count(&count);
    static_cast<Seen*>(context)->calls++;
  };
  close(a, 0);
  ASSERT_EQ(d().launch_host(a, function, &seen), kSuccess);
  EXPECT_EQ(seen.calls, 0);
  gates[0] = 1;
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.code, kNotPermitted);
}

TEST_F(StandIn, WhatACaptureForbidsIsRefused) {
  Stream const stream = a;
  Event before = nullptr, within = nullptr;
  ASSERT_EQ(d().event_create(&before, kEventWithoutTime), kSuccess);
  ASSERT_EQ(d().event_create(&within, kEventWithoutTime), kSuccess);
  ASSERT_EQ(d().event_record(before, stream), kSuccess);
  ASSERT_EQ(d().event_synchronize(before), kSuccess);
  auto capture = std::make_unique<testing::Capture>(0, stream);
  int status = 0;
  EXPECT_EQ(d().stream_capturing(stream, &status), kSuccess);
  EXPECT_NE(status, 0);
  EXPECT_EQ(d().stream_synchronize(stream), 900);
  EXPECT_EQ(d().stream_query(stream), 900);
  EXPECT_EQ(d().stream_wait_event(stream, before, 0), 905);
  EXPECT_EQ(d().event_record(within, stream), kSuccess);
  EXPECT_EQ(d().stream_wait_event(stream, within, 0), kSuccess);
  EXPECT_EQ(d().event_query(within), 907);
  EXPECT_EQ(d().event_synchronize(within), 907);
  std::thread([&] {  // another thread, another stream, and nothing that the capture has to do with
    const auto allocated = [] {
      DevicePointer pointer = 0;
      const Code code = d().allocate(&pointer, 4);
      return code == kSuccess ? d().free(pointer) : code;
    };
    {
      const Current relaxed(*device);
      EXPECT_EQ(d().event_query(before), kSuccess);
      EXPECT_EQ(allocated(), kSuccess);
      int global = 0;
      EXPECT_EQ(d().exchange_capture_mode(&global), kSuccess);
      EXPECT_EQ(d().event_query(before), 900);
      EXPECT_EQ(allocated(), 900);
      EXPECT_EQ(d().exchange_capture_mode(&global), kSuccess);
    }
    EXPECT_EQ(d().event_query(before), 900) << "as it was before";
  })
      .join();
  capture->replay();
  capture.reset();
  EXPECT_EQ(d().stream_capturing(stream, &status), kSuccess);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(d().stream_wait_event(stream, before, 0), kSuccess);
  EXPECT_EQ(d().stream_synchronize(stream), kSuccess);
  EXPECT_NE(control.broken_rules(), "");
  EXPECT_EQ(d().event_destroy(before), kSuccess);
  EXPECT_EQ(d().event_destroy(within), kSuccess);
}

TEST_F(StandIn, WhileABlockingStreamIsCapturedTheDefaultOneCannotBeUsed) {
  Stream blocking = nullptr;
  ASSERT_EQ(d().stream_create(&blocking, 0, 0), kSuccess);
  int status = 0;
  {
    const testing::Capture other(0, a);
    EXPECT_EQ(d().stream_capturing(nullptr, &status), kSuccess) << "one that does not block";
    EXPECT_EQ(d().synchronize(), 900) << "the context has a stream that is captured";
    control.broken_rules();
  }
  {
    const testing::Capture capture(0, blocking);
    EXPECT_EQ(d().stream_capturing(nullptr, &status), 906);
    EXPECT_EQ(control.broken_rules(), "") << "it may be asked";
    EXPECT_EQ(d().fill_async(memory, 1, 4, nullptr), 906);
    EXPECT_NE(control.broken_rules(), "");
    EXPECT_EQ(d().fill_async(memory, 1, 4, a), kSuccess);
  }
  EXPECT_EQ(d().stream_capturing(nullptr, &status), kSuccess);
  EXPECT_EQ(d().synchronize(), kSuccess);
  ASSERT_EQ(d().stream_destroy(blocking), kSuccess);
}

}  // namespace
}  // namespace fsccl::cuda
