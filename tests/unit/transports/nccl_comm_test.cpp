// Tests communicators of NCCL over the stand-in: they begin, end, fail and hang, and no wait lasts
// beyond its deadline. Ranks are threads, each with a GPU of its own.
#include "transports/nccl/nccl_comm.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/stand_in/nccl/in_process.h"

namespace fsccl::nccl {
namespace {

using ::testing::HasSubstr;

template <class Body>
void in_process(const char* injections, Body body) {
  stand_in_nccl::in_process({{"FSCCL_STAND_IN_NCCL_FAIL", injections}}, body);
}

struct Member {
  std::unique_ptr<Communicator> comm;
  Status status;
};

std::vector<Member> make(int ranks, int64_t timeout_ms, bool can_revoke = true,
                         const std::function<Status()>& broken = {}) {
  std::string why;
  const Library* const found = library(&why);
  const ncclUniqueId id = Communicator::make_id(*found).take();
  std::vector<Member> members(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      Communicator::Request request;
      request.library = found;
      request.device = cuda::Device::open(rank).take();
      request.id = id;
      request.rank = rank;
      request.ranks = ranks;
      request.can_revoke = can_revoke;
      request.timeout_ms = request.start_ms = timeout_ms;
      request.broken = broken;
      Result<std::unique_ptr<Communicator>> made = Communicator::create(std::move(request));
      Member& member = members[static_cast<size_t>(rank)];
      if (made.ok())
        member.comm = made.take();
      else
        member.status = made.take_status();
    });
  for (std::thread& thread : threads) thread.join();
  return members;
}

// Runs one all-gather of every rank on a stream of its own, and then waits for the stream.
struct Gathering {
  explicit Gathering(Communicator& on) : comm(on), device(on.device()) {
    const cuda::Current current(device);
    EXPECT_EQ(device.driver().cuMemAlloc(&memory, 4096), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuStreamCreateWithPriority(&stream, cuda::CU_STREAM_NON_BLOCKING, 0),
              cuda::CUDA_SUCCESS);
  }
  ~Gathering() {
    const cuda::Current current(device);
    EXPECT_EQ(device.driver().cuStreamSynchronize(stream), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuStreamDestroy(stream), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuMemFree(memory), cuda::CUDA_SUCCESS);
  }
  Status start() {
    const cuda::Current current(device);
    auto* const own = reinterpret_cast<char*>(memory) + 64 * comm.rank();
    return comm.group([&] {
      return comm.check("ncclAllGather",
                        comm.library().ncclAllGather(own, reinterpret_cast<void*>(memory), 64,
                                                     ncclUint8, comm.handle(), stream));
    });
  }
  Communicator& comm;
  const cuda::Device& device;
  cuda::CUdeviceptr memory = 0;
  cuda::CUstream stream = nullptr;
};

TEST(NcclComm, BeginsAndEnds) {
  std::vector<Member> members = make(3, 60'000);
  for (Member& member : members) ASSERT_TRUE(member.comm) << member.status.text();
  {
    std::vector<std::unique_ptr<Gathering>> gatherings;
    for (Member& member : members) gatherings.push_back(std::make_unique<Gathering>(*member.comm));
    for (const auto& one : gatherings) EXPECT_TRUE(one->start().ok());
  }
  for (Member& member : members) EXPECT_TRUE(member.comm->look().ok());
  members.clear();
  EXPECT_EQ(stand_in_nccl::Control().broken_rules(), "");
}

TEST(NcclComm, AnInitThatFailsSaysWhyAndWhatToDo) {
  in_process("ncclCommInitRankConfig:1:error", [] {
    const std::vector<Member> members = make(1, 60'000);
    ASSERT_FALSE(members[0].status.ok());
    EXPECT_THAT(members[0].status.text(),
                HasSubstr("ncclCommInitRankConfig: unhandled system error: injected"));
    EXPECT_THAT(members[0].status.text(), HasSubstr("FSCCL_DEVICE_TRANSPORT=staged"));
  });
}

TEST(NcclComm, WhatNcclSaysIsToldAsOurs) {
  std::string why;
  const Library& nccl = *library(&why);
  EXPECT_EQ(failed(nccl, "ncclAllGather", ncclTimeout, nullptr).code(), FSCCL_ERR_TIMEOUT);
  EXPECT_EQ(failed(nccl, "ncclAllGather", ncclRemoteError, nullptr).code(), FSCCL_ERR_PEER_DEAD);
  EXPECT_EQ(failed(nccl, "ncclAllGather", ncclInternalError, nullptr).code(), FSCCL_ERR_INTERNAL);
}

TEST(NcclComm, AnInitThatHangsEndsAtItsDeadline) {
  in_process("ncclCommInitRankConfig:1:hang:1", [] {
    const std::vector<Member> members = make(2, 300);
    for (const Member& member : members) {
      EXPECT_EQ(member.status.code(), FSCCL_ERR_TIMEOUT);
      EXPECT_THAT(member.status.text(), HasSubstr("was not over in 300 ms"));
    }
  });
}

TEST(NcclComm, ALostRankEndsTheInit) {
  in_process("ncclCommInitRankConfig:1:hang:1", [] {
    const std::vector<Member> members =
        make(2, 600'000, true, [] { return fail(FSCCL_ERR_PEER_DEAD, "rank 1 died"); });
    for (const Member& member : members) EXPECT_EQ(member.status.code(), FSCCL_ERR_PEER_DEAD);
  });
}

void end_while_a_stream_hangs(bool revoke) {
  std::vector<Member> members = make(2, 60'000, revoke);
  Gathering first(*members[0].comm), second(*members[1].comm);
  EXPECT_TRUE(first.start().ok() && second.start().ok());
  for (Member& member : members) member.comm->end(fail(FSCCL_ERR_TIMEOUT, "too late"));
  for (Gathering* one : {&first, &second}) {
    const cuda::Current current(one->device);
    // NCCL's communicator was freed, and the stream ends.
    EXPECT_EQ(one->device.driver().cuStreamSynchronize(one->stream), cuda::CUDA_SUCCESS);
    const Status again = one->start();
    EXPECT_EQ(again.code(), FSCCL_ERR_TIMEOUT);
    EXPECT_EQ(again.text(), "too late");
    EXPECT_EQ(one->comm.handle() != nullptr, revoke)
        << "what is revoked is not freed under who may use it";
  }
}
TEST(NcclComm, AnEndFreesStreamsThatHang) {
  in_process("ncclAllGather:1:hang", [] {
    end_while_a_stream_hangs(true);
    EXPECT_EQ(stand_in_nccl::Control().calls("ncclCommRevoke"), 2u);
  });
  in_process("ncclAllGather:1:hang", [] {
    end_while_a_stream_hangs(false);
    EXPECT_EQ(stand_in_nccl::Control().calls("ncclCommAbort"), 2u);
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
std::atomic<bool> no_threads{false};
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  static const auto next =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads ? EAGAIN : next(thread, attributes, run, argument);
}
TEST(NcclComm, AnEndNeedsNoThread) {
  in_process("", [] {
    std::vector<Member> members = make(2, 60'000, false);
    no_threads = true;
    for (Member& member : members) member.comm->end(fail(FSCCL_ERR_TIMEOUT, "too late"));
    EXPECT_EQ(stand_in_nccl::Control().calls("ncclCommAbort"), 2u);
  });
}
#endif

TEST(NcclComm, WhatNcclFindsOutLater) {
  in_process("ncclAllGather:1:async:0", [] {
    std::vector<Member> members = make(2, 60'000);
    Gathering first(*members[0].comm), second(*members[1].comm);
    Status seen = first.start();  // may return the error already
    EXPECT_TRUE(second.start().ok());
    while (seen.ok()) seen = members[0].comm->look();  // until the stream has come to the operation
    EXPECT_EQ(seen.code(), FSCCL_ERR_PEER_DEAD);
    for (Member& member : members) member.comm->end(seen);
  });
}

// NCCL before 2.27 keeps a call's job in its thread's memory, where the next one on another
// communicator would find it.
TEST(NcclComm, OneThreadServesSeveral) {
  for (const char* const version : {"21903", "22602", "22809"})
    stand_in_nccl::in_process({{"FSCCL_STAND_IN_NCCL_VERSION", version}}, [] {
      std::vector<Member> first = make(1, 60'000), second = make(1, 60'000);
      {
        Gathering one(*first[0].comm), other(*second[0].comm);
        for (int turn = 0; turn < 3; turn++) EXPECT_TRUE(one.start().ok() && other.start().ok());
      }
      first.clear();
      Gathering last(*second[0].comm);
      EXPECT_TRUE(last.start().ok());
    });
}

// Memory that was made by the driver's functions for virtual memory. Windows need this kind.
struct Page {
  static constexpr size_t kBytes = 2u << 20;
  explicit Page(const cuda::Device& on) : device(on) {
    const cuda::Driver& driver = device.driver();
    cuda::CUmemAllocationProp properties;
    properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    properties.location.id = device.ordinal();
    cuda::CUmemAccessDesc access;
    access.location.id = device.ordinal();
    EXPECT_EQ(driver.cuMemCreate(&handle, kBytes, &properties, 0), cuda::CUDA_SUCCESS);
    EXPECT_EQ(driver.cuMemAddressReserve(&memory, kBytes, 0, 0, 0), cuda::CUDA_SUCCESS);
    EXPECT_EQ(driver.cuMemMap(memory, kBytes, 0, handle, 0), cuda::CUDA_SUCCESS);
    EXPECT_EQ(driver.cuMemSetAccess(memory, kBytes, &access, 1), cuda::CUDA_SUCCESS);
  }
  ~Page() {
    EXPECT_EQ(device.driver().cuMemUnmap(memory, kBytes), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuMemAddressFree(memory, kBytes), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuMemRelease(handle), cuda::CUDA_SUCCESS);
  }
  const cuda::Device& device;
  cuda::CUmemGenericAllocationHandle handle = 0;
  cuda::CUdeviceptr memory = 0;
};

TEST(NcclComm, AWindowOrARefusal) {
  for (const bool refused : {false, true})
    in_process(
        refused ? "ncclCommWindowRegister:1:error:0,ncclCommWindowRegister:1:error:1" : "",
        [refused] {
          std::vector<Member> members = make(2, 60'000);
          std::vector<Status> outcomes(2);
          std::vector<std::thread> threads;
          for (size_t rank = 0; rank < 2; rank++)
            threads.emplace_back([&, rank] {
              Communicator& comm = *members[rank].comm;
              const cuda::Current current(comm.device());
              const Page page(comm.device());
              const cuda::CUdeviceptr memory = page.memory;
              outcomes[rank] = comm.register_window(reinterpret_cast<void*>(memory), 4096);
              EXPECT_TRUE(comm.look().ok()) << "nothing is under way any more, or it has said so";
              EXPECT_EQ(comm.in_window(reinterpret_cast<char*>(memory) + 96, 4000), !refused);
              EXPECT_FALSE(comm.in_window(reinterpret_cast<char*>(memory) + 97, 4000));
              Gathering works(comm);
              EXPECT_EQ(works.start().ok(), !refused) << "it is the communicator's error for good";
              if (!refused) members[rank].comm.reset();  // must end before the window's memory
            });
          for (std::thread& thread : threads) thread.join();
          for (const Status& outcome : outcomes) EXPECT_EQ(outcome.ok(), !refused);
          members.clear();
          EXPECT_EQ(stand_in_nccl::Control().broken_rules(), "");
        });
}

}  // namespace
}  // namespace fsccl::nccl
