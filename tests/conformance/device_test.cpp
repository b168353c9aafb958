// Tests that collectives on memory of GPUs have the same operations, results and errors as on
// memory of the host, whatever moves the bytes (FSCCL_DEVICE_TRANSPORT). Each rank has a stream, on
// its own GPU if there are enough. NCCL does not let ranks that are threads share one GPU, so with
// too few GPUs bytes go through host memory. Tests are skipped if there is neither a GPU nor a
// stand-in.
#include <numeric>

#include "capture.h"
#include "collective_case.h"
#include "fsccl/insight.h"
#include "tests/stand_in/cuda/control.h"
#include "tests/stand_in/nccl/control.h"

namespace fsccl::testing {
namespace {

class DeviceRanks : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::device_count(&why)) GTEST_SKIP() << why;
  }
  void TearDown() override {
    if (const stand_in::Control cuda; cuda.there()) {
      EXPECT_EQ(cuda.broken_rules(), "");
    }
    if (const stand_in_nccl::Control nccl; nccl.there()) {
      EXPECT_EQ(nccl.broken_rules(), "");
    }
  }
};
using Device = DeviceRanks;

std::string explained(fsccl_comm_t comm) {
  std::vector<char> text(1 << 16);
  EXPECT_OK(fsccl_explain(comm, "all_gather", 1 << 20, text.data(), text.size()));
  return text.data();
}

// Returns whether results must be equal. NCCL rounds sums of 16-bit floats at every step where this
// library has no kernel for them, so the values differ there.
bool rounds_alike(const std::string& explanation, fsccl_dtype_t dtype, fsccl_op_t op, Kind kind) {
  if (fsccl_dtype_size(dtype) != 2 || !is_float(dtype) || op.kind == FSCCL_OP_MIN ||
      op.kind == FSCCL_OP_MAX)
    return true;
  if (explanation.find(R"("transport":"staged")") != std::string::npos) return true;
  const bool reduces = explanation.find("by this library's kernel") != std::string::npos;
  return reduces && (op.kind == FSCCL_OP_SUM || op.kind == FSCCL_OP_AVG) &&
         (kind == Kind::reduce_scatter || kind == Kind::all_reduce);
}

TEST_P(Device, EveryDtypeOperatorAndForm) {
  run_ranks(GetParam(), [](Rank& self) {
    CollectiveCase c;
    c.memory = Memory::device;
    c.kind = Kind::all_gather;
    c.count = 1;
    run_collective(c, self, nullptr);
    const std::string explanation = explained(self.comm);
    EXPECT_NE(explanation.find(R"("device":{"transport":)"), std::string::npos) << explanation;
    for (int dtype = 0; dtype < FSCCL_DTYPE_COUNT; ++dtype)
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}})
        for (const bool in_place : {false, true}) {
          c.dtype = static_cast<fsccl_dtype_t>(dtype);
          c.count = count;
          c.in_place = in_place;
          c.seed = mix(count, static_cast<uint64_t>(dtype) * 2 + in_place);
          c.kind = Kind::all_gather;
          run_collective(c, self, nullptr);
          for (const fsccl_op_t& op : operators_of(c.dtype))
            for (const Kind kind : {Kind::reduce_scatter, Kind::all_reduce}) {
              if (!rounds_alike(explanation, c.dtype, op, kind)) continue;
              c.op = op;
              c.kind = kind;
              c.seed++;
              run_collective(c, self, nullptr);
            }
          c.kind = Kind::broadcast;
          c.root = static_cast<int>(c.seed % static_cast<uint64_t>(self.ranks));
          c.in_place = false;
          run_collective(c, self, nullptr);
          if (HasFailure()) return;
        }
    c.kind = Kind::barrier;
    run_collective(c, self, nullptr);
    const bool nccl = explanation.find(R"("transport":"nccl")") != std::string::npos;
    if (const stand_in_nccl::Control called; called.there()) {
      EXPECT_EQ(called.calls("ncclAllGather") > 0, nccl);
    }
  });
}

// Some counts exceed the piece that goes through host memory at a time.
TEST_P(Device, LargerCounts) {
  run_ranks(GetParam(), [](Rank& self) {
    for (const Kind kind :
         {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::broadcast})
      for (const size_t count :
           {size_t{25'600}, (size_t{9} << 18) / static_cast<size_t>(self.ranks) + 5})
        run_collective(
            {kind, FSCCL_FLOAT32, FSCCL_SUM, count, Memory::device, false, self.ranks - 1, count},
            self, nullptr);
  });
}

// A block of 32-bit numbers that count up from `first`, and a copy of them on the host.
struct Numbers {
  Numbers(const cuda::Device& gpu, size_t count, uint32_t first)
      : host(count), device(gpu, count * 4 + 4) {
    std::iota(host.begin(), host.end(), first);
    std::vector<uint32_t> padded = host;
    padded.push_back(0);
    device.put(padded.data());
  }
  std::vector<uint32_t> now() const {
    std::vector<uint32_t> padded(host.size() + 1);
    device.take(padded.data());
    padded.pop_back();
    return padded;
  }
  uint32_t* at(size_t index) const { return reinterpret_cast<uint32_t*>(device.get()) + index; }
  std::vector<uint32_t> host;
  DeviceBlock device;
};
uint32_t of_rank(size_t rank) { return static_cast<uint32_t>(rank) * 1'000'000; }

struct Setting {
  explicit Setting(const Rank& self)
      : ranks(static_cast<size_t>(self.ranks)), rank(static_cast<size_t>(self.rank)) {
    std::string why;
    gpu = device_of_rank(self.rank, &why);
    stream = std::make_unique<DeviceStream>(*gpu);
  }
  size_t ranks, rank;
  const cuda::Device* gpu = nullptr;
  std::unique_ptr<DeviceStream> stream;
};

TEST_P(Device, PartsOfDifferentSizes) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    std::vector<size_t> counts, ends;
    for (size_t q = 0; q < at.ranks; q++) counts.push_back(q % 2 ? 0 : 100 * q + 7);
    const size_t whole = std::accumulate(counts.begin(), counts.end(), size_t{0});
    const Numbers mine(*at.gpu, counts[at.rank], of_rank(at.rank)), all(*at.gpu, whole, 0);
    ASSERT_OK(fsccl_all_gather_v(mine.at(0), all.at(0), counts.data(), nullptr, FSCCL_UINT32,
                                 self.comm, at.stream->get(), nullptr));
    const Numbers parts(*at.gpu, whole, 5), sum(*at.gpu, counts[at.rank], 0);
    ASSERT_OK(fsccl_reduce_scatter_v(parts.at(0), sum.at(0), counts.data(), FSCCL_UINT32, FSCCL_SUM,
                                     self.comm, at.stream->get(), nullptr));
    at.stream->synchronize();
    std::vector<uint32_t> wanted;
    for (size_t q = 0; q < at.ranks; q++)
      for (uint32_t i = 0; i < counts[q]; i++) wanted.push_back(of_rank(q) + i);
    EXPECT_EQ(all.now(), wanted);
    const size_t before = std::accumulate(counts.begin(), counts.begin() + self.rank, size_t{0});
    std::vector<uint32_t> sums;
    for (size_t i = 0; i < counts[at.rank]; i++)
      sums.push_back(static_cast<uint32_t>((5 + before + i) * at.ranks));
    EXPECT_EQ(sum.now(), sums);
  });
}

TEST_P(Device, RootedOnes) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    constexpr size_t kCount = 333;
    const int root = self.ranks - 1;
    const bool is_root = self.rank == root;
    const Numbers mine(*at.gpu, kCount, of_rank(at.rank)), all(*at.gpu, kCount * at.ranks, 0),
        part(*at.gpu, kCount, 0), sum(*at.gpu, kCount, 0);
    void* const stream = at.stream->get();
    ASSERT_OK(fsccl_gather(mine.at(0), is_root ? all.at(0) : nullptr, kCount, FSCCL_UINT32, root,
                           self.comm, stream, nullptr));
    ASSERT_OK(fsccl_scatter(is_root ? all.at(0) : nullptr, part.at(0), kCount, FSCCL_UINT32, root,
                            self.comm, stream, nullptr));
    ASSERT_OK(fsccl_reduce(mine.at(0), is_root ? sum.at(0) : nullptr, kCount, FSCCL_UINT32,
                           FSCCL_SUM, root, self.comm, stream, nullptr));
    at.stream->synchronize();
    EXPECT_EQ(part.now(), mine.host);
    if (!is_root) return;
    const std::vector<uint32_t> gathered = all.now(), summed = sum.now();
    for (size_t q = 0; q < at.ranks; q++)
      for (size_t i = 0; i < kCount; i++) ASSERT_EQ(gathered[q * kCount + i], of_rank(q) + i);
    for (uint32_t i = 0; i < kCount; i++) {
      uint32_t wanted = 0;
      for (size_t q = 0; q < at.ranks; q++) wanted += of_rank(q) + i;
      ASSERT_EQ(summed[i], wanted);
    }
  });
}

void all_to_all_in_both_forms(int ranks) {
  run_ranks(ranks, [](Rank& self) {
    const Setting at(self);
    constexpr size_t kCount = 50;
    const Numbers mine(*at.gpu, kCount * at.ranks, of_rank(at.rank)),
        all(*at.gpu, kCount * at.ranks, 0);
    ASSERT_OK(fsccl_all_to_all(mine.at(0), all.at(0), kCount, FSCCL_UINT32, self.comm,
                               at.stream->get(), nullptr));
    // Rank a sends a + 2 b elements to rank b, and the last rank sends none.
    const auto between = [&](size_t a, size_t b) { return a + 1 == at.ranks ? 0 : a + 2 * b; };
    std::vector<size_t> sent, sent_from, received, received_to;
    for (size_t q = 0, out = 0, in = 0; q < at.ranks; q++) {
      sent.push_back(between(at.rank, q)), sent_from.push_back(out), out += sent.back();
      received.push_back(between(q, at.rank)), received_to.push_back(in), in += received.back() + 1;
    }
    const Numbers uneven(*at.gpu, kCount * at.ranks, 77);
    ASSERT_OK(fsccl_all_to_all_v(mine.at(0), sent.data(), sent_from.data(), uneven.at(0),
                                 received.data(), received_to.data(), FSCCL_UINT32, self.comm,
                                 at.stream->get(), nullptr));
    at.stream->synchronize();
    const std::vector<uint32_t> got = all.now(), got_uneven = uneven.now();
    std::vector<uint32_t> wanted = uneven.host;
    for (size_t q = 0; q < at.ranks; q++) {
      for (size_t i = 0; i < kCount; i++)
        ASSERT_EQ(got[q * kCount + i], of_rank(q) + at.rank * kCount + i);
      size_t begin = 0;
      for (size_t r = 0; r < at.rank; r++) begin += between(q, r);
      for (size_t i = 0; i < received[q]; i++)
        wanted[received_to[q] + i] = of_rank(q) + static_cast<uint32_t>(begin + i);
    }
    EXPECT_EQ(got_uneven, wanted);
  });
}

TEST_P(Device, AllToAllAndItsVForm) { all_to_all_in_both_forms(GetParam()); }
// The totals of four ranks lie on both sides of the limit of the rule, and nevertheless they must
// choose alike.
TEST_P(Device, AllToAllOfAnyLengthsByARuleOfBytes) {
  const Settings settings{{"FSCCL_PLAN", "all_to_all:60-=staged"}};
  all_to_all_in_both_forms(GetParam());
}

TEST_P(Device, Lists) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    std::vector<size_t> even(at.ranks, 40), uneven;
    for (size_t q = 0; q < at.ranks; q++) uneven.push_back(3 * q);
    const size_t whole = std::accumulate(uneven.begin(), uneven.end(), size_t{0});
    const Numbers a(*at.gpu, 40, of_rank(at.rank)), b(*at.gpu, uneven[at.rank], of_rank(at.rank)),
        all_a(*at.gpu, 40 * at.ranks, 0), all_b(*at.gpu, whole, 0);
    const fsccl_tensor_t list[] = {{a.at(0), all_a.at(0), even.data(), FSCCL_UINT32},
                                   {b.at(0), all_b.at(0), uneven.data(), FSCCL_UINT32}};
    ASSERT_OK(fsccl_all_gather_list(list, 2, self.comm, at.stream->get(), nullptr));
    at.stream->synchronize();
    const std::vector<uint32_t> got_a = all_a.now(), got_b = all_b.now();
    for (size_t q = 0, end = 0; q < at.ranks; q++) {
      for (uint32_t i = 0; i < 40; i++) ASSERT_EQ(got_a[q * 40 + i], of_rank(q) + i);
      for (uint32_t i = 0; i < uneven[q]; i++) ASSERT_EQ(got_b[end++], of_rank(q) + i);
    }
    ASSERT_OK(fsccl_broadcast_list(list, 2, 0, self.comm, at.stream->get(), nullptr));
    ASSERT_OK(
        fsccl_reduce_scatter_list(nullptr, 0, FSCCL_SUM, self.comm, at.stream->get(), nullptr));
    at.stream->synchronize();
  });
}

// Messages go around a ring, large and small: a rank that sent before receiving without a group
// would wait for ever.
TEST_P(Device, MessagesInAGroup) {
  if (GetParam() < 2) return;
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    const int next = (self.rank + 1) % self.ranks, last = (self.rank + self.ranks - 1) % self.ranks;
    for (const size_t count : {size_t{1}, size_t{300'000}, size_t{300'000}}) {
      const Numbers mine(*at.gpu, count, of_rank(at.rank)), theirs(*at.gpu, count, 0);
      ASSERT_OK(fsccl_group_start());
      ASSERT_OK(fsccl_send(mine.at(0), count, FSCCL_UINT32, next, 3, self.comm, at.stream->get(),
                           nullptr));
      ASSERT_OK(fsccl_recv(theirs.at(0), count, FSCCL_UINT32, last, 3, self.comm, at.stream->get(),
                           nullptr));
      ASSERT_OK(fsccl_group_end());
      at.stream->synchronize();
      std::vector<uint32_t> wanted(count);
      std::iota(wanted.begin(), wanted.end(), of_rank(static_cast<size_t>(last)));
      EXPECT_EQ(theirs.now(), wanted);
    }
  });
}

TEST_P(Device, CollectivesInAGroup) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    const Numbers a(*at.gpu, 100, of_rank(at.rank)), all(*at.gpu, 100 * at.ranks, 0),
        sum(*at.gpu, 100, 0);
    ASSERT_OK(fsccl_group_start());
    ASSERT_OK(fsccl_all_gather(a.at(0), all.at(0), 100, FSCCL_UINT32, self.comm, at.stream->get(),
                               nullptr));
    ASSERT_OK(fsccl_all_reduce(a.at(0), sum.at(0), 100, FSCCL_UINT32, FSCCL_MAX, self.comm,
                               at.stream->get(), nullptr));
    ASSERT_OK(fsccl_group_end());
    at.stream->synchronize();
    const std::vector<uint32_t> got = all.now(), most = sum.now();
    for (size_t q = 0; q < at.ranks; q++) ASSERT_EQ(got[q * 100 + 99], of_rank(q) + 99);
    EXPECT_EQ(most[1], of_rank(at.ranks - 1) + 1);
  });
}

// A communicator that is gone when its group ends is an error, and calls on others are made.
TEST_P(Device, AGroupOfADestroyedCommunicator) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    const Numbers a(*at.gpu, 100, of_rank(at.rank)), most(*at.gpu, 100, 0), none(*at.gpu, 100, 0);
    fsccl_comm_t other = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &other));
    const auto reduce = [&](fsccl_comm_t comm, const Numbers& to) {
      ASSERT_OK(fsccl_all_reduce(a.at(0), to.at(0), 100, FSCCL_UINT32, FSCCL_MAX, comm,
                                 at.stream->get(), nullptr));
    };
    ASSERT_OK(fsccl_group_start());
    reduce(other, none);
    reduce(self.comm, most);
    reduce(other, none);
    ASSERT_OK(fsccl_comm_destroy(other));
    EXPECT_ERROR(fsccl_group_end(), FSCCL_ERR_INVALID_HANDLE, "destroyed");
    at.stream->synchronize();
    EXPECT_EQ(most.now()[1], of_rank(at.ranks - 1) + 1);
  });
}

// One group has calls with buffers on two GPUs, in turns. A communicator works on one GPU.
TEST_P(Device, AGroupOnTwoGpusIsRefused) {
  std::string why;
  const cuda::Device &one = *device_of_rank(0, &why), &two = *device_of_rank(1, &why);
  if (one.ordinal() == two.ordinal()) GTEST_SKIP() << "one GPU";
  run_ranks(1, [&](Rank& self) {
    const DeviceStream stream(one), elsewhere(two);
    const Numbers a(one, 100, 1), b(two, 100, 2);
    const auto reduce = [&](const Numbers& buffer, const DeviceStream& on) {
      ASSERT_OK(fsccl_all_reduce(buffer.at(0), buffer.at(0), 100, FSCCL_UINT32, FSCCL_MAX,
                                 self.comm, on.get(), nullptr));
    };
    ASSERT_OK(fsccl_group_start());
    reduce(a, stream);
    reduce(b, elsewhere);
    reduce(a, stream);
    EXPECT_LT(fsccl_group_end(), 0);
    stream.synchronize();
  });
}

// Each part has a communicator of NCCL of its own. The parts work beside each other, and the whole
// goes on.
TEST_P(Device, PartsOfASplitCommunicator) {
  if (GetParam() < 2) return;
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    fsccl_comm_t part = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, -self.rank, nullptr, &part));  // backwards
    const size_t size = (at.ranks + 1 - at.rank % 2) / 2;
    for (int round = 0; round < 2; round++) {
      const Numbers mine(*at.gpu, 100, of_rank(at.rank)), of_part(*at.gpu, 100 * size, 0),
          of_all(*at.gpu, 100 * at.ranks, 0);
      ASSERT_OK(fsccl_all_gather(mine.at(0), of_part.at(0), 100, FSCCL_UINT32, part,
                                 at.stream->get(), nullptr));
      ASSERT_OK(fsccl_all_gather(mine.at(0), of_all.at(0), 100, FSCCL_UINT32, self.comm,
                                 at.stream->get(), nullptr));
      at.stream->synchronize();
      const std::vector<uint32_t> parts = of_part.now(), all = of_all.now();
      for (size_t q = 0; q < size; q++)
        ASSERT_EQ(parts[q * 100 + 99], of_rank(2 * (size - 1 - q) + at.rank % 2) + 99);
      for (size_t q = 0; q < at.ranks; q++) ASSERT_EQ(all[q * 100 + 99], of_rank(q) + 99);
    }
    const std::string whole = explained(self.comm), key = R"("device":{"transport":")";
    const size_t begin = whole.find(key) + key.size();
    const std::string by = whole.substr(begin, whole.find('"', begin) - begin);
    if (size > 1) {
      EXPECT_NE(explained(part).find(R"("device":{"transport":")" + by), std::string::npos)
          << explained(part);
    }
    ASSERT_OK(fsccl_comm_destroy(part));
  });
}

TEST_P(Device, GoesAsTheRulesSay) {
  const Settings settings{{"FSCCL_PLAN", "all_gather=staged, all_reduce:1K-=summed"}};
  run_ranks(GetParam(), [](Rank& self) {
    CollectiveCase c;
    c.memory = Memory::device;
    c.count = 1000;
    for (const Kind kind : {Kind::all_gather, Kind::all_reduce, Kind::reduce_scatter}) {
      c.kind = kind;
      run_collective(c, self, nullptr);
    }
    const std::string explanation = explained(self.comm);
    EXPECT_NE(explanation.find(R"("why":"FSCCL_PLAN says so")"), std::string::npos) << explanation;
    EXPECT_NE(explanation.find(R"({"plan":"staged","chosen":true)"), std::string::npos)
        << explanation;
  });
}

TEST_P(Device, SaysWhatItDoesNot) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    const Numbers a(*at.gpu, 10, 0);
    std::vector<uint32_t> host(10 * at.ranks);
    fsccl_work_t work = nullptr;
    EXPECT_ERROR(fsccl_all_reduce(a.at(0), a.at(0), 10, FSCCL_UINT32, FSCCL_SUM, self.comm,
                                  at.stream->get(), &work),
                 FSCCL_ERR_NOT_AVAILABLE, {"record an event"});
    EXPECT_ERROR(
        fsccl_all_gather(a.at(0), host.data(), 10, FSCCL_UINT32, self.comm, nullptr, nullptr),
        FSCCL_ERR_INVALID_ARGUMENT, {"recv is memory of the host"});
    EXPECT_ERROR(fsccl_all_reduce(host.data(), host.data(), 10, FSCCL_UINT32, FSCCL_SUM, self.comm,
                                  at.stream->get(), nullptr),
                 FSCCL_ERR_NOT_AVAILABLE, "stream is not NULL", "memory of the host");
    EXPECT_ERROR(fsccl_barrier(self.comm, at.stream->get(), nullptr), FSCCL_ERR_NOT_AVAILABLE,
                 "of which device");
    EXPECT_ERROR(
        fsccl_broadcast(a.at(0), 10, FSCCL_UINT32, 99, self.comm, at.stream->get(), nullptr),
        FSCCL_ERR_INVALID_ARGUMENT, {"root 99"});
    EXPECT_ERROR(fsccl_all_reduce(nullptr, a.at(0), 10, FSCCL_UINT32, FSCCL_SUM, self.comm,
                                  at.stream->get(), nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, {"NULL"});
  });
}

// Calls that a graph can repeat go into it; the others are refused before anything is put on the
// stream, and work goes on after them.
TEST_P(Device, ACaptureHasWhatAGraphCanRepeat) {
  run_ranks(GetParam(), [](Rank& self) {
    const Setting at(self);
    const Numbers a(*at.gpu, 100, of_rank(at.rank)), all(*at.gpu, 100 * at.ranks, 0);
    const auto gather = [&] {
      return fsccl_all_gather(a.at(0), all.at(0), 100, FSCCL_UINT32, self.comm, at.stream->get(),
                              nullptr);
    };
    const auto sum = [&](fsccl_dtype_t dtype) {
      return fsccl_all_reduce(a.at(0), all.at(0), 50, dtype, FSCCL_SUM, self.comm, at.stream->get(),
                              nullptr);
    };
    {
      const Capture early(at.gpu->ordinal(), at.stream->get());
      EXPECT_ERROR(gather(), FSCCL_ERR_NOT_AVAILABLE, "before the capture");
      ASSERT_OK(fsccl_group_start());
      ASSERT_OK(gather());
      EXPECT_ERROR(fsccl_group_end(), FSCCL_ERR_NOT_AVAILABLE, "before the capture");
    }
    ASSERT_OK(gather());
    ASSERT_OK(sum(FSCCL_BFLOAT16));
    at.stream->synchronize();
    const std::string explanation = explained(self.comm);
    const bool nccl = explanation.find(R"("transport":"nccl")") != std::string::npos;
    const bool reduces = explanation.find("by this library's kernel") != std::string::npos;
    const Numbers again(*at.gpu, 100 * at.ranks, 0);
    const DeviceStream beside(*at.gpu);
    Capture capture(at.gpu->ordinal(), at.stream->get());
    if (nccl) {
      // NCCL takes a communicator's calls of a group into graphs all, or none, and would end the
      // communicator.
      ASSERT_OK(fsccl_group_start());
      ASSERT_OK(gather());
      ASSERT_OK(fsccl_barrier(self.comm, beside.get(), nullptr));
      EXPECT_ERROR(fsccl_group_end(), FSCCL_ERR_INVALID_ARGUMENT, "1 of 2 calls",
                   "groups of their own");
      EXPECT_OK(fsccl_all_gather(a.at(0), again.at(0), 100, FSCCL_UINT32, self.comm,
                                 at.stream->get(), nullptr));
    } else {
      EXPECT_ERROR(gather(), FSCCL_ERR_NOT_AVAILABLE, "cannot capture", "fsccl_explain");
    }
    if (nccl && reduces) {
      EXPECT_ERROR(sum(FSCCL_BFLOAT16), FSCCL_ERR_NOT_AVAILABLE, "bfloat16",
                   "outside of the capture");
    } else if (!nccl) {
      EXPECT_ERROR(sum(FSCCL_BFLOAT16), FSCCL_ERR_NOT_AVAILABLE, "cannot capture");
    }
    capture.replay();
    at.stream->synchronize();
    const std::vector<uint32_t> got = again.now();
    for (size_t q = 0; nccl && q < at.ranks; q++) ASSERT_EQ(got[q * 100 + 99], of_rank(q) + 99);
    EXPECT_OK(gather());
    at.stream->synchronize();
  });
}

INSTANTIATE_TEST_SUITE_P(Gpu, Device, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace fsccl::testing
