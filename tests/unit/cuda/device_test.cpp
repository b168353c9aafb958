// Tests devices, contexts, events and kinds of addresses, over the stand-in driver with three GPUs.
#include "cuda/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <thread>

#include "cuda/pointer.h"
#include "tests/conformance/capture.h"
#include "tests/stand_in/cuda/control.h"

namespace fsccl::cuda {
namespace {

using stand_in::Control;

const Device& device(int ordinal) {
  Result<const Device*> opened = Device::open(ordinal);
  if (!opened.ok()) std::abort();
  return *opened.value();
}

TEST(Device, IsWhatTheDriverSays) {
  ASSERT_TRUE(Control().there());
  std::string why;
  EXPECT_EQ(device_count(&why), 3);
  const Device& first = device(0);
  EXPECT_EQ(first.ordinal(), 0);
  EXPECT_EQ(first.name(), "stand-in for a GPU");
  EXPECT_EQ(first.memory_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(first.capability(), 90);
  EXPECT_EQ(first.multiprocessors(), 4);
  EXPECT_TRUE(first.posix_handles() && first.wide_values() && first.batches());
  EXPECT_FALSE(first.fabric_handles());
  EXPECT_NE(std::memcmp(first.uuid(), device(1).uuid(), 16), 0);
}

TEST(Device, IsMadeOnce) {
  const Device* const first = &device(1);
  const uint64_t before = Control().calls();
  std::thread([&] { EXPECT_EQ(&device(1), first); }).join();
  EXPECT_EQ(Control().calls(), before) << "a call of the driver";
}

TEST(Device, IsLookedAtWithoutAContext) {
  const uint64_t before = Control().calls("cuDevicePrimaryCtxRetain");
  const Result<Device> looked = Device::look(1);
  ASSERT_TRUE(looked.ok());
  EXPECT_EQ(looked.value().copy_engines(), 2);
  EXPECT_EQ(looked.value().ordinal(), 1);
  EXPECT_EQ(Control().calls("cuDevicePrimaryCtxRetain"), before);
}

TEST(Device, ThatIsNotThereIsRefused) {
  for (const int ordinal : {-1, 3}) {
    const Status status = Device::open(ordinal).take_status();
    EXPECT_EQ(status.code(), FSCCL_ERR_NOT_AVAILABLE);
    EXPECT_NE(status.text().find("this process sees 3"), std::string::npos) << status.text();
  }
}

TEST(Device, ThatFailsIsRefusedAndMayComeLater) {
  const Control control;
  for (const char* function :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2",
        "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain"}) {
    control.fail(function, 1, 100);
    const Status status = Device::open(2).take_status();
    EXPECT_EQ(status.code(), FSCCL_ERR_NOT_AVAILABLE) << function;
    EXPECT_NE(status.text().find("CUDA_ERROR_NO_DEVICE"), std::string::npos) << status.text();
  }
  setenv("FSCCL_STAND_IN_ATTRIBUTES", "102=0", 1);
  EXPECT_NE(Device::open(2).take_status().text().find("no virtual memory management"),
            std::string::npos);
  unsetenv("FSCCL_STAND_IN_ATTRIBUTES");
  EXPECT_TRUE(Device::open(2).ok());
}

TEST(Device, ItsErrorsAreStatuses) {
  const Device& first = device(0);
  EXPECT_TRUE(first.check("cuMemCreate", CUDA_SUCCESS).ok());
  EXPECT_EQ(first.check("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY).code(), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(first.check("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED).code(), FSCCL_ERR_NOT_AVAILABLE);
  const Status status = first.check("cuMemCreate", 700);
  EXPECT_EQ(status.code(), FSCCL_ERR_SYSTEM);
  EXPECT_EQ(status.text(),
            "cuMemCreate: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)");
}

TEST(Current, NestsAndIsTheThreadsOwn) {
  const Device &first = device(0), &second = device(1);
  const auto memory_is_of = [&](const Device& expected) {
    CUdeviceptr pointer = 0;
    int ordinal = -1;
    EXPECT_EQ(first.driver().cuMemAlloc(&pointer, 256), CUDA_SUCCESS);
    EXPECT_TRUE(on_device(reinterpret_cast<void*>(pointer), &ordinal));
    EXPECT_EQ(ordinal, expected.ordinal());
    EXPECT_EQ(first.driver().cuMemFree(pointer), CUDA_SUCCESS);
  };
  {
    const Current outer(first);
    memory_is_of(first);
    {
      const Current inner(second);
      memory_is_of(second);
      std::thread([&] {
        const Current own(first);
        memory_is_of(first);
      }).join();
    }
    memory_is_of(first);
  }
  CUdeviceptr pointer = 0;
  EXPECT_NE(first.driver().cuMemAlloc(&pointer, 256), CUDA_SUCCESS) << "no context is left";
}

TEST(Pointers, OfTheHostAreOfNoDevice) {
  int ordinal = -1, local = 0;
  alignas(4096) static char registered[4096];
  EXPECT_FALSE(on_device(&local, &ordinal));
  EXPECT_FALSE(on_device(nullptr, &ordinal));
  const Current current(device(0));
  ASSERT_EQ(device(0).driver().cuMemHostRegister(registered, sizeof registered,
                                                 CU_MEMHOSTREGISTER_PORTABLE),
            CUDA_SUCCESS);
  EXPECT_FALSE(on_device(registered, &ordinal));
  ASSERT_EQ(device(0).driver().cuMemHostUnregister(registered), CUDA_SUCCESS);
}

TEST(Streams, TheDefaultOneIsCapturedWithAnyThatBlocks) {
  Control().broken_rules();  // forgets the rules that earlier tests have broken
  const Device& first = device(0);
  const Current current(first);
  CUstream blocking = nullptr;
  ASSERT_EQ(first.driver().cuStreamCreateWithPriority(&blocking, 0, 0), CUDA_SUCCESS);
  EXPECT_FALSE(first.capturing(nullptr).value());
  {
    const testing::Capture capture(0, blocking);
    EXPECT_TRUE(first.capturing(blocking).value());
    const Result<bool> beside = first.capturing(nullptr);
    ASSERT_TRUE(beside.ok()) << beside.status().text();
    EXPECT_TRUE(beside.value());
    Result<OwnedStream> own = OwnedStream::create(first);
    ASSERT_TRUE(own.ok());
    EXPECT_FALSE(first.capturing(own.value().get()).value());
    EXPECT_TRUE(own.value().finish(Deadline::never()).ok());
  }
  EXPECT_FALSE(first.capturing(nullptr).value());
  EXPECT_EQ(first.driver().cuStreamDestroy(blocking), CUDA_SUCCESS);
  EXPECT_EQ(Control().broken_rules(), "");
}

TEST(Events, OrderStreamsAndGo) {
  const Control control;
  const Device& first = device(0);
  const Driver& driver = first.driver();
  const int64_t before = control.live("events");
  uint32_t gate = 0;
  {
    Result<OwnedEvent> made = OwnedEvent::create(first), other = OwnedEvent::create(first);
    ASSERT_TRUE(made.ok() && other.ok());
    OwnedEvent event = std::move(made.value());
    event = std::move(other.value());
    EXPECT_TRUE(event.complete()) << "never recorded";
    const Current current(first);
    ASSERT_EQ(driver.cuMemHostRegister(&gate, sizeof gate,
                                       CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE),
              CUDA_SUCCESS);
    CUstream a = nullptr, b = nullptr;
    for (CUstream* stream : {&a, &b})
      ASSERT_EQ(driver.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    CUstreamBatchMemOpParams wait;
    wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.address = reinterpret_cast<CUdeviceptr>(&gate);
    wait.value64 = 1;
    ASSERT_EQ(driver.cuStreamBatchMemOp(a, 1, &wait, 0), CUDA_SUCCESS);
    EXPECT_TRUE(event.record(a).ok());
    EXPECT_TRUE(event.make_wait(b).ok());
    EXPECT_FALSE(event.complete());
    EXPECT_EQ(driver.cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    EXPECT_EQ(driver.cuStreamSynchronize(b), CUDA_SUCCESS);
    EXPECT_TRUE(event.complete());
    for (CUstream stream : {a, b}) EXPECT_EQ(driver.cuStreamDestroy(stream), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuMemHostUnregister(&gate), CUDA_SUCCESS);
    EXPECT_EQ(event.record(a).code(), FSCCL_ERR_SYSTEM) << "the stream is gone";
  }
  EXPECT_EQ(control.live("events"), before);
  control.fail("cuEventCreate");
  EXPECT_EQ(OwnedEvent::create(first).take_status().code(), FSCCL_ERR_OUT_OF_MEMORY);
}

}  // namespace
}  // namespace fsccl::cuda
