// Tests the list forms with random lists of tensors, of every size, dtype by dtype, in the caller's
// memory, in the pool or in either. Every element is checked. The same lists go through slots so
// small that they take many buckets, and so large that all is packed at once.
#include <numeric>
#include <vector>

#include "reference.h"
#include "support.h"

namespace fsccl::testing {
namespace {

enum class ListKind { all_gather, reduce_scatter, broadcast };

struct Tensor {
  std::vector<size_t> counts;
  fsccl_dtype_t dtype{};
  uint64_t seed = 0;
  bool in_place = false;
  void *send_block = nullptr, *recv_block = nullptr;
  char *send = nullptr, *recv = nullptr;
  bool pooled = false;

  size_t size() const { return fsccl_dtype_size(dtype); }
  size_t whole() const { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }
  size_t before(int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
  }
  std::vector<char> values(int rank, size_t count) const {
    std::vector<char> bytes(count * size());
    fill_values(dtype, bytes.data(), count, mix(seed, static_cast<uint64_t>(rank)), false);
    return bytes;
  }
};

class List {
 public:
  List(Rank& self, fsccl_pool_t pool, Random& random, ListKind kind, size_t most)
      : self_(self),
        pool_(pool),
        kind_(kind),
        root_(static_cast<int>(random.below(static_cast<uint64_t>(self.ranks)))) {
    tensors_.resize(random.below(12));
    const uint64_t memory = random.below(3);
    for (Tensor& tensor : tensors_) {
      constexpr fsccl_dtype_t kTypes[] = {FSCCL_FLOAT32, FSCCL_BFLOAT16, FSCCL_INT64, FSCCL_UINT8};
      tensor.dtype = kTypes[random.below(4)];
      tensor.seed = random.next();
      tensor.in_place = random.below(2);
      tensor.pooled =
          memory == 0 || (memory == 1 && mix(tensor.seed, static_cast<uint64_t>(self.rank)) % 2);
      for (int q = 0; q < (kind == ListKind::broadcast ? 1 : self.ranks); q++)
        tensor.counts.push_back(random.below(4) ? random.below(random.below(3) ? 20 : most) : 0);
      make(tensor);
    }
  }
  ~List() {
    for (Tensor& tensor : tensors_)
      for (void* block : {tensor.send_block, tensor.recv_block})
        if (tensor.pooled) {
          EXPECT_OK(fsccl_pool_free(pool_, block, nullptr));
        } else {
          std::free(block);
        }
  }
  List(const List&) = delete;

  fsccl_status_t run(fsccl_op_t op) {
    std::vector<fsccl_tensor_t> list;
    for (Tensor& tensor : tensors_)
      list.push_back({tensor.send, tensor.recv, tensor.counts.data(), tensor.dtype});
    switch (kind_) {
      case ListKind::all_gather:
        return fsccl_all_gather_list(list.data(), list.size(), self_.comm, nullptr, nullptr);
      case ListKind::reduce_scatter:
        return fsccl_reduce_scatter_list(list.data(), list.size(), op, self_.comm, nullptr,
                                         nullptr);
      case ListKind::broadcast:
        break;
    }
    return fsccl_broadcast_list(list.data(), list.size(), root_, self_.comm, nullptr, nullptr);
  }

  void check(fsccl_op_t op) const {
    for (size_t t = 0; t < tensors_.size(); t++) {
      const Tensor& tensor = tensors_[t];
      const std::vector<char> wanted = result(tensor, op);
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), tensor.recv))
          << "rank " << self_.rank << " of " << self_.ranks << ", kind " << static_cast<int>(kind_)
          << ", tensor " << t << " of " << tensors_.size() << ", " << wanted.size() << " bytes";
    }
  }

 private:
  void* allocate(bool pooled, size_t bytes) {
    if (!pooled) return std::malloc(bytes + 1);
    void* block = nullptr;
    EXPECT_OK(fsccl_pool_alloc(pool_, bytes + 1, nullptr, &block));
    return block;
  }
  void make(Tensor& tensor) {
    const size_t whole = tensor.whole() * tensor.size(),
                 own_begin =
                     kind_ == ListKind::broadcast ? 0 : tensor.before(self_.rank) * tensor.size();
    const size_t own =
        kind_ == ListKind::broadcast ? 0 : tensor.counts[static_cast<size_t>(self_.rank)];
    tensor.send_block = allocate(tensor.pooled, whole);
    tensor.recv_block = allocate(tensor.pooled, whole);
    tensor.send = static_cast<char*>(tensor.send_block);
    tensor.recv = static_cast<char*>(tensor.recv_block);
    std::vector<char> input;
    if (kind_ == ListKind::all_gather) {
      input = tensor.values(self_.rank, own);
      if (tensor.in_place) tensor.send = tensor.recv + own_begin;
    } else if (kind_ == ListKind::reduce_scatter) {
      input = tensor.values(self_.rank, tensor.whole());
      if (tensor.in_place) tensor.recv = tensor.send + own_begin;
    } else {
      if (self_.rank == root_) input = tensor.values(root_, tensor.whole());
      tensor.send = nullptr;
    }
    std::copy(input.begin(), input.end(), kind_ == ListKind::broadcast ? tensor.recv : tensor.send);
  }
  std::vector<char> result(const Tensor& tensor, fsccl_op_t op) const {
    if (kind_ == ListKind::broadcast) return tensor.values(root_, tensor.whole());
    std::vector<char> bytes;
    if (kind_ == ListKind::all_gather) {
      for (int q = 0; q < self_.ranks; q++) {
        const std::vector<char> part = tensor.values(q, tensor.counts[static_cast<size_t>(q)]);
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
      return bytes;
    }
    std::vector<std::vector<char>> inputs;
    std::vector<const void*> sources;
    for (int q = 0; q < self_.ranks; q++) inputs.push_back(tensor.values(q, tensor.whole()));
    for (const std::vector<char>& input : inputs)
      sources.push_back(input.data() + tensor.before(self_.rank) * tensor.size());
    const size_t count = tensor.counts[static_cast<size_t>(self_.rank)];
    bytes.resize(count * tensor.size());
    reference_reduce(tensor.dtype, op, sources, count, bytes.data());
    return bytes;
  }

  Rank& self_;
  fsccl_pool_t pool_;
  const ListKind kind_;
  const int root_;
  std::vector<Tensor> tensors_;
};

struct ListWay {
  const char *name, *single_copy, *slot_bytes;
  size_t most;
};
std::ostream& operator<<(std::ostream& out, const ListWay& way) { return out << way.name; }
constexpr ListWay kListWays[] = {{"Defaults", "auto", "128K", 60'000},
                                 {"SmallSlots", "off", "4K", 9'000},
                                 {"Packed", "off", "4M", 3'000}};

class Lists : public ::testing::TestWithParam<std::tuple<ListWay, int>> {};

TEST_P(Lists, RandomLists) {
  const auto& [way, ranks] = GetParam();
  const Settings settings{{"FSCCL_SINGLE_COPY", way.single_copy},
                          {"FSCCL_SLOT_BYTES", way.slot_bytes}};
  const size_t most = way.most;
  run_ranks(ranks, [most](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(static_cast<uint64_t>(self.ranks) + most);
    for (int i = 0; i < 45 && !HasFailure(); ++i) {
      List list(self, pool.get(), random, static_cast<ListKind>(i % 3), most);
      for (int again = 0; again < 2; again++) ASSERT_OK(list.run(FSCCL_MAX));
      if (i % 3 != 1) list.check(FSCCL_MAX);
      // A sum in place changes its input, so it can run only once. Sums therefore have lists of
      // their own.
      List sums(self, pool.get(), random, ListKind::reduce_scatter, most);
      ASSERT_OK(sums.run(FSCCL_SUM));
      sums.check(FSCCL_SUM);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Shm, Lists,
                         ::testing::Combine(::testing::ValuesIn(kListWays),
                                            ::testing::Values(1, 2, 3, 5)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

TEST(Lists, Misuse) {
  run_ranks(1, [](Rank& self) {
    float value = 0;
    const size_t one = 1, many = size_t{1} << 50;
    fsccl_tensor_t tensor = {&value, &value, nullptr, FSCCL_FLOAT32};
    EXPECT_ERROR(fsccl_all_gather_list(nullptr, 1, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "list is NULL");
    EXPECT_ERROR(fsccl_all_gather_list(&tensor, 1, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "counts is NULL");
    tensor.counts = &many;
    EXPECT_ERROR(fsccl_all_gather_list(&tensor, 1, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "address space");
    const size_t negative = static_cast<size_t>(-1);
    tensor.counts = &negative;
    EXPECT_ERROR(fsccl_all_gather_list(&tensor, 1, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "counts[0] is -1 (negative)");
    tensor.counts = &one;
    tensor.recv = nullptr;
    EXPECT_ERROR(fsccl_broadcast_list(&tensor, 1, 0, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "NULL");
    tensor.recv = &value;
    tensor.dtype = FSCCL_FLOAT8_E4M3;
    EXPECT_ERROR(fsccl_reduce_scatter_list(&tensor, 1, FSCCL_SUM, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "reduced");
    EXPECT_ERROR(fsccl_broadcast_list(&tensor, 1, 1, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "root 1");
    EXPECT_OK(fsccl_broadcast_list(nullptr, 0, 0, self.comm, nullptr, nullptr));
  });
}

TEST(Lists, RanksThatDisagree) {
  run_ranks(2, [](Rank& self) {
    std::vector<float> values(1'000'000);  // more than a root sends ahead of those who listen
    const size_t count = self.rank ? 1'000'000 : 999'999;
    const fsccl_tensor_t tensor = {nullptr, values.data(), &count, FSCCL_FLOAT32};
    EXPECT_ERROR(fsccl_broadcast_list(&tensor, 1, 0, self.comm, nullptr, nullptr),
                 FSCCL_ERR_MISMATCH, "broadcast_list");
  });
}

}  // namespace
}  // namespace fsccl::testing
