// Tests the stand-in's streams, and which other calls are delayed or forbidden while streams wait
// or are being captured.
#include <chrono>
#include <memory>
#include <thread>

#include "on_stand_in.h"
#include "tests/conformance/capture.h"

namespace fsccl::cuda {
namespace {

TEST_F(StandIn, AStreamIsInOrderAndTwoAreNot) {
  close(a, 0);
  ASSERT_EQ(d().cuMemsetD8Async(memory, 1, 4, a), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemsetD8Async(memory, 2, 4, b), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_FALSE(idle(a));
  EXPECT_EQ(*words(memory), 0x02020202u);
  gates[0] = 1;
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(*words(memory), 0x01010101u);
}

TEST_F(StandIn, AnEventStandsForWhatWasPutBeforeItWasRecorded) {
  CUevent event = nullptr;
  ASSERT_EQ(d().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(d().cuEventQuery(event), CUDA_SUCCESS) << "never recorded";
  close(a, 0);
  ASSERT_EQ(d().cuEventRecord(event, a), CUDA_SUCCESS);
  close(a, 1);
  EXPECT_EQ(d().cuEventQuery(event), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(d().cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuEventRecord(event, a), CUDA_SUCCESS) << "what b waits for stays";
  EXPECT_FALSE(idle(b));
  gates[0] = 1;
  ASSERT_EQ(d().cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(d().cuEventQuery(event), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(d().cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(d().cuEventQuery(event), kInvalidHandle);
}

TEST_F(StandIn, TheDefaultStreamIsBeforeAndBehindThoseThatBlock) {
  CUstream blocking = nullptr;
  ASSERT_EQ(d().cuStreamCreateWithPriority(&blocking, 0, 0), CUDA_SUCCESS);
  close(blocking, 0);
  close(a, 1);
  ASSERT_EQ(d().cuMemsetD8Async(memory, 3, 4, nullptr), CUDA_SUCCESS);
  EXPECT_FALSE(idle(nullptr)) << "behind `blocking`, whose gate is closed";
  ASSERT_EQ(d().cuMemsetD8Async(memory + 4, 3, 4, blocking), CUDA_SUCCESS);
  gates[0] = 1;
  ASSERT_EQ(d().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_FALSE(idle(a)) << "neither waits for it";
  EXPECT_EQ(*words(memory), 0x03030303u);
  ASSERT_EQ(d().cuStreamSynchronize(blocking), CUDA_SUCCESS);
  gates[0] = 0;
  close(nullptr, 0);
  ASSERT_EQ(d().cuMemsetD8Async(memory, 4, 4, blocking), CUDA_SUCCESS);
  EXPECT_FALSE(idle(blocking)) << "behind the default stream";
  gates[0] = 1;
  ASSERT_EQ(d().cuStreamSynchronize(blocking), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamDestroy(blocking), CUDA_SUCCESS);
}

TEST_F(StandIn, ValuesAreComparedInACircle) {
  CUstreamBatchMemOpParams operations[3];
  *words(memory) = 5;
  operations[0] = {CU_STREAM_MEM_OP_WAIT_VALUE_32, memory, 0xfffffff0u};  // 5 is 21 greater
  operations[1] = {CU_STREAM_MEM_OP_WRITE_VALUE_32, memory, 7};
  operations[2] = {CU_STREAM_MEM_OP_WRITE_VALUE_64, memory + 8, uint64_t{1} << 40};
  ASSERT_EQ(d().cuStreamBatchMemOp(a, 3, operations, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(*words(memory), 7u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(memory + 8), uint64_t{1} << 40);
  operations[0] = {CU_STREAM_MEM_OP_WAIT_VALUE_64, memory + 8, (uint64_t{1} << 40) + 1};
  ASSERT_EQ(d().cuStreamBatchMemOp(a, 1, operations, 0), CUDA_SUCCESS);
  EXPECT_FALSE(idle(a));
  operations[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  ASSERT_EQ(d().cuStreamBatchMemOp(b, 1, operations, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  operations[0] = {CU_STREAM_MEM_OP_WAIT_VALUE_32, memory + 2, 0};
  EXPECT_EQ(d().cuStreamBatchMemOp(a, 1, operations, 0), CUDA_ERROR_INVALID_VALUE) << "not aligned";
  uint32_t plain = 0;
  operations[0] = {CU_STREAM_MEM_OP_WRITE_VALUE_32, address_of(&plain), 1};
  EXPECT_EQ(d().cuStreamBatchMemOp(a, 1, operations, 0), CUDA_ERROR_INVALID_VALUE)
      << "not registered";
}

TEST_F(StandIn, OrdinaryMemoryMakesACopyWaitUnlessItIsASmallSource) {
  uint32_t small = 11;
  close(a, 0);
  ASSERT_EQ(d().cuMemcpyAsync(memory, address_of(&small), 4, a), CUDA_SUCCESS);
  small = 12;  // the copy has read the 11 already
  gates[0] = 1;
  uint32_t back = 0;
  ASSERT_EQ(d().cuMemcpyAsync(address_of(&back), memory, 4, a), CUDA_SUCCESS);
  EXPECT_EQ(back, 11u) << "and it is there when the call returns";
}

// The copy may wait for a call of another thread, which it keeps out of the driver. On a GPU
// neither call would ever end.
TEST_F(StandIn, ACopyToOrdinaryMemoryKeepsOtherThreadsOutOfTheDriver) {
  for (const bool another_calls : {false, true}) {
    gates[0] = 0;
    close(a, 0);
    uint32_t back = 0;
    const uint64_t before = control.calls("cuMemcpyAsync");
    std::thread copying([&] {
      const Current own(*device);
      EXPECT_EQ(d().cuMemcpyAsync(address_of(&back), memory, 4, a), CUDA_SUCCESS);
    });
    while (control.calls("cuMemcpyAsync") == before) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (another_calls)
      // The call returns only because the stand-in notes a broken rule and lets it go on.
      EXPECT_EQ(d().cuStreamQuery(b), CUDA_SUCCESS);
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const std::string broken = control.broken_rules();
    gates[0] = 1;
    copying.join();
    EXPECT_EQ(broken.find("ordinary host memory") != std::string::npos, another_calls) << broken;
  }
}

TEST_F(StandIn, AQueueIsFiniteAndAStreamThatIsDestroyedIsWorkedOff) {
  CUstream stream = nullptr;
  ASSERT_EQ(d().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  close(stream, 0);
  for (int i = 0; i < 300; i++) ASSERT_EQ(d().cuMemsetD8Async(memory, 7, 4, stream), CUDA_SUCCESS);
  EXPECT_EQ(control.broken_rules(), "");
  for (std::string broken; broken.empty(); broken = control.broken_rules())
    ASSERT_EQ(d().cuMemsetD8Async(memory, 8, 4, stream), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamDestroy(stream), CUDA_SUCCESS);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gates[0] = 1;
  });
  EXPECT_EQ(d().cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(*words(memory), 0x08080808u);
  opener.join();
}

TEST_F(StandIn, AFunctionOfTheHostRunsInItsTurnAndMayNotCallCuda) {
  struct Seen {
    std::atomic<int> calls{0};
    CUresult code = 0;
  } seen;
  const auto function = [](void* context) {
    int count = 0;
    static_cast<Seen*>(context)->code = d().cuDeviceGetCount(&count);
    static_cast<Seen*>(context)->calls++;
  };
  close(a, 0);
  ASSERT_EQ(d().cuLaunchHostFunc(a, function, &seen), CUDA_SUCCESS);
  EXPECT_EQ(seen.calls, 0);
  gates[0] = 1;
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.code, kNotPermitted);
}

TEST_F(StandIn, WhatACaptureForbidsIsRefused) {
  CUstream const stream = a;
  CUevent before = nullptr, within = nullptr;
  ASSERT_EQ(d().cuEventCreate(&before, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(d().cuEventCreate(&within, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(d().cuEventRecord(before, stream), CUDA_SUCCESS);
  ASSERT_EQ(d().cuEventSynchronize(before), CUDA_SUCCESS);
  auto capture = std::make_unique<testing::Capture>(0, stream);
  int status = 0;
  EXPECT_EQ(d().cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_NE(status, 0);
  EXPECT_EQ(d().cuStreamSynchronize(stream), 900);
  EXPECT_EQ(d().cuStreamQuery(stream), 900);
  EXPECT_EQ(d().cuStreamWaitEvent(stream, before, 0), 905);
  EXPECT_EQ(d().cuEventRecord(within, stream), CUDA_SUCCESS);
  EXPECT_EQ(d().cuStreamWaitEvent(stream, within, 0), CUDA_SUCCESS);
  EXPECT_EQ(d().cuEventQuery(within), 907);
  EXPECT_EQ(d().cuEventSynchronize(within), 907);
  std::thread([&] {  // a thread and a stream that have nothing to do with the capture
    const auto allocated = [] {
      CUdeviceptr pointer = 0;
      const CUresult code = d().cuMemAlloc(&pointer, 4);
      return code == CUDA_SUCCESS ? d().cuMemFree(pointer) : code;
    };
    {
      const Current relaxed(*device);
      EXPECT_EQ(d().cuEventQuery(before), CUDA_SUCCESS);
      EXPECT_EQ(allocated(), CUDA_SUCCESS);
      int global = 0;
      EXPECT_EQ(d().cuThreadExchangeStreamCaptureMode(&global), CUDA_SUCCESS);
      EXPECT_EQ(d().cuEventQuery(before), 900);
      EXPECT_EQ(allocated(), 900);
      EXPECT_EQ(d().cuThreadExchangeStreamCaptureMode(&global), CUDA_SUCCESS);
    }
    EXPECT_EQ(d().cuEventQuery(before), 900) << "as it was before";
  })
      .join();
  capture->replay();
  capture.reset();
  EXPECT_EQ(d().cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(d().cuStreamWaitEvent(stream, before, 0), CUDA_SUCCESS);
  EXPECT_EQ(d().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_NE(control.broken_rules(), "");
  EXPECT_EQ(d().cuEventDestroy(before), CUDA_SUCCESS);
  EXPECT_EQ(d().cuEventDestroy(within), CUDA_SUCCESS);
}

TEST_F(StandIn, WhileABlockingStreamIsCapturedTheDefaultOneCannotBeUsed) {
  CUstream blocking = nullptr;
  ASSERT_EQ(d().cuStreamCreateWithPriority(&blocking, 0, 0), CUDA_SUCCESS);
  int status = 0;
  {
    const testing::Capture other(0, a);
    EXPECT_EQ(d().cuStreamIsCapturing(nullptr, &status), CUDA_SUCCESS) << "one that does not block";
    EXPECT_EQ(d().cuCtxSynchronize(), 900) << "the context has a stream that is captured";
    control.broken_rules();
  }
  {
    const testing::Capture capture(0, blocking);
    EXPECT_EQ(d().cuStreamIsCapturing(nullptr, &status), 906);
    EXPECT_EQ(control.broken_rules(), "") << "it may be asked";
    EXPECT_EQ(d().cuMemsetD8Async(memory, 1, 4, nullptr), 906);
    EXPECT_NE(control.broken_rules(), "");
    EXPECT_EQ(d().cuMemsetD8Async(memory, 1, 4, a), CUDA_SUCCESS);
  }
  EXPECT_EQ(d().cuStreamIsCapturing(nullptr, &status), CUDA_SUCCESS);
  EXPECT_EQ(d().cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamDestroy(blocking), CUDA_SUCCESS);
}

}  // namespace
}  // namespace fsccl::cuda
