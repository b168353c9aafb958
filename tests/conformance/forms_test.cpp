// Tests the forms with a root, with parts of different sizes, and all-to-all, and groups of
// operations. Every element of every rank's input is a function of (rank, index), small whole
// numbers, so that sums are exact and each rank knows what it must get. Buffers lie in the caller's
// memory, in the pool, or in either by rank.
#include <algorithm>
#include <numeric>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

float value_of(int rank, size_t index) {
  return static_cast<float>((static_cast<size_t>(rank) * 31 + index * 7) % 101);
}

// A buffer of floats with a guard behind it, from the pool or not.
class Floats {
 public:
  Floats(fsccl_pool_t pool, bool pooled, size_t count)
      : pool_(pooled ? pool : nullptr), count_(count) {
    void* block = nullptr;
    if (pool_) {
      EXPECT_OK(fsccl_pool_alloc(pool_, (count + 1) * sizeof(float), nullptr, &block));
    } else {
      block = std::malloc((count + 1) * sizeof(float));
    }
    data_ = static_cast<float*>(block);
    std::fill(data_, data_ + count + 1, -1.0f);
  }
  ~Floats() {
    EXPECT_EQ(data_[count_], -1.0f) << "the element behind a buffer was written";
    if (pool_) {
      EXPECT_OK(fsccl_pool_free(pool_, data_, nullptr));
    } else {
      std::free(data_);
    }
  }
  Floats(const Floats&) = delete;
  float* data() { return data_; }
  float& operator[](size_t i) { return data_[i]; }
  void fill(int rank) {
    for (size_t i = 0; i < count_; i++) data_[i] = value_of(rank, i);
  }

 private:
  fsccl_pool_t pool_;
  size_t count_;
  float* data_ = nullptr;
};

struct Form {
  Rank& self;
  fsccl_pool_t pool;
  Random random;  // the same on all ranks
  size_t ranks() const { return static_cast<size_t>(self.ranks); }
  size_t rank() const { return static_cast<size_t>(self.rank); }
  bool pooled() {
    const uint64_t kind = random.below(3);
    return kind == 0 || (kind == 1 && mix(random.next(), rank()) % 2);
  }
  size_t count() {
    const size_t bounds[] = {4, 40, 2000, 40'000};
    return random.below(bounds[random.below(4)]);
  }
  std::vector<size_t> counts() {
    std::vector<size_t> result;
    for (size_t q = 0; q < ranks(); q++) result.push_back(random.below(5) ? count() : 0);
    return result;
  }
};

float sum_at(const Form& f, size_t index) {
  float sum = 0;
  for (int q = 0; q < f.self.ranks; q++) sum += value_of(q, index);
  return sum;
}

void gather(Form& f) {
  const size_t count = f.count();
  const int root = static_cast<int>(f.random.below(f.ranks()));
  const bool pooled = f.pooled(), in_place = f.random.below(2), at_root = f.self.rank == root;
  Floats in(f.pool, pooled, count), out(f.pool, pooled, at_root ? count * f.ranks() : 0);
  in.fill(f.self.rank);
  float* const own = out.data() + count * f.rank();
  if (at_root && in_place) std::copy_n(in.data(), count, own);
  ASSERT_OK(fsccl_gather(at_root && in_place ? own : in.data(), at_root ? out.data() : nullptr,
                         count, FSCCL_FLOAT32, root, f.self.comm, nullptr, nullptr));
  for (size_t i = 0; at_root && i < count * f.ranks(); i++)
    ASSERT_EQ(out[i], value_of(static_cast<int>(i / count), i % count)) << i;
}

void scatter(Form& f) {
  const size_t count = f.count();
  const int root = static_cast<int>(f.random.below(f.ranks()));
  const bool pooled = f.pooled(), in_place = f.random.below(2), at_root = f.self.rank == root;
  Floats in(f.pool, pooled, at_root ? count * f.ranks() : 0), out(f.pool, pooled, count);
  in.fill(f.self.rank);
  float* const result = at_root && in_place ? in.data() + count * f.rank() : out.data();
  ASSERT_OK(fsccl_scatter(at_root ? in.data() : nullptr, result, count, FSCCL_FLOAT32, root,
                          f.self.comm, nullptr, nullptr));
  for (size_t i = 0; i < count; i++)
    ASSERT_EQ(result[i], value_of(root, count * f.rank() + i)) << i;
}

void reduce(Form& f) {
  const size_t count = f.count();
  const int root = static_cast<int>(f.random.below(f.ranks()));
  const bool pooled = f.pooled(), in_place = f.random.below(2), at_root = f.self.rank == root;
  Floats in(f.pool, pooled, count), out(f.pool, pooled, at_root ? count : 0);
  in.fill(f.self.rank);
  float* const result = at_root ? (in_place ? in.data() : out.data()) : nullptr;
  ASSERT_OK(fsccl_reduce(in.data(), result, count, FSCCL_FLOAT32, FSCCL_SUM, root, f.self.comm,
                         nullptr, nullptr));
  for (size_t i = 0; i < count; i++)
    ASSERT_EQ(at_root ? result[i] : in[i], at_root ? sum_at(f, i) : value_of(f.self.rank, i)) << i;
}

void all_to_all(Form& f) {
  const size_t count = f.count();
  const bool pooled = f.pooled();
  Floats in(f.pool, pooled, count * f.ranks()), out(f.pool, pooled, count * f.ranks());
  in.fill(f.self.rank);
  ASSERT_OK(
      fsccl_all_to_all(in.data(), out.data(), count, FSCCL_FLOAT32, f.self.comm, nullptr, nullptr));
  for (size_t i = 0; i < count * f.ranks(); i++)
    ASSERT_EQ(out[i], value_of(static_cast<int>(i / count), count * f.rank() + i % count)) << i;
}

void all_gather_v(Form& f) {
  const std::vector<size_t> counts = f.counts();
  const bool pooled = f.pooled(), in_place = f.random.below(2), end_to_end = f.random.below(2);
  std::vector<size_t> begins;
  size_t whole = 0;
  for (const size_t count : counts) {
    if (!end_to_end) whole += f.random.below(3);
    begins.push_back(whole);
    whole += count;
  }
  Floats in(f.pool, pooled, counts[f.rank()]), out(f.pool, pooled, whole);
  in.fill(f.self.rank);
  float* const own = out.data() + begins[f.rank()];
  if (in_place) std::copy_n(in.data(), counts[f.rank()], own);
  ASSERT_OK(fsccl_all_gather_v(in_place ? own : in.data(), out.data(), counts.data(),
                               end_to_end ? nullptr : begins.data(), FSCCL_FLOAT32, f.self.comm,
                               nullptr, nullptr));
  std::vector<float> wanted(whole, -1.0f);
  for (size_t q = 0; q < f.ranks(); q++)
    for (size_t i = 0; i < counts[q]; i++) wanted[begins[q] + i] = value_of(static_cast<int>(q), i);
  ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), out.data()));
}

void reduce_scatter_v(Form& f) {
  const std::vector<size_t> counts = f.counts();
  const size_t begin = std::accumulate(counts.begin(), counts.begin() + f.self.rank, size_t{0});
  const size_t whole = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const bool pooled = f.pooled(), in_place = f.random.below(2);
  Floats in(f.pool, pooled, whole), out(f.pool, pooled, counts[f.rank()]);
  in.fill(f.self.rank);
  float* const result = in_place ? in.data() + begin : out.data();
  ASSERT_OK(fsccl_reduce_scatter_v(in.data(), result, counts.data(), FSCCL_FLOAT32, FSCCL_SUM,
                                   f.self.comm, nullptr, nullptr));
  for (size_t i = 0; i < counts[f.rank()]; i++) ASSERT_EQ(result[i], sum_at(f, begin + i)) << i;
}

void all_to_all_v(Form& f) {
  // counts[p][q] is the count that p sends to q. All ranks draw the same table, and each uses its
  // own row and column.
  std::vector<std::vector<size_t>> counts;
  for (size_t p = 0; p < f.ranks(); p++) counts.push_back(f.counts());
  std::vector<size_t> send_begins, recv_counts, recv_begins;
  size_t sent = 0, received = 0;
  for (size_t q = 0; q < f.ranks(); q++) {
    send_begins.push_back(sent);
    sent += counts[f.rank()][q];
    recv_counts.push_back(counts[q][f.rank()]);
    recv_begins.push_back(received);
    received += recv_counts.back() + 1;  // leaves a gap behind each part
  }
  const bool pooled = f.pooled();
  Floats in(f.pool, pooled, sent), out(f.pool, pooled, received);
  in.fill(f.self.rank);
  ASSERT_OK(fsccl_all_to_all_v(in.data(), counts[f.rank()].data(), send_begins.data(), out.data(),
                               recv_counts.data(), recv_begins.data(), FSCCL_FLOAT32, f.self.comm,
                               nullptr, nullptr));
  for (size_t p = 0; p < f.ranks(); p++) {
    const size_t there =
        std::accumulate(counts[p].begin(), counts[p].begin() + f.self.rank, size_t{0});
    for (size_t i = 0; i < recv_counts[p]; i++)
      ASSERT_EQ(out[recv_begins[p] + i], value_of(static_cast<int>(p), there + i));
    ASSERT_EQ(out[recv_begins[p] + recv_counts[p]], -1.0f) << "a gap was written";
  }
}

struct FormWay {
  const char *name, *single_copy, *eager_bytes, *slot_bytes;
};
std::ostream& operator<<(std::ostream& out, const FormWay& way) { return out << way.name; }
constexpr FormWay kFormWays[] = {{"Defaults", "auto", "4K", "128K"},
                                 {"SmallSlots", "off", "0", "4K"},
                                 {"Eager", "off", "64K", "64K"}};

class Forms : public ::testing::TestWithParam<std::tuple<FormWay, int>> {};

TEST_P(Forms, RandomCases) {
  const auto& [way, ranks] = GetParam();
  const Settings settings{{"FSCCL_SINGLE_COPY", way.single_copy},
                          {"FSCCL_EAGER_BYTES", way.eager_bytes},
                          {"FSCCL_SLOT_BYTES", way.slot_bytes}};
  run_ranks(ranks, [](Rank& self) {
    const PoolScope pool(self.comm);
    Form form{self, pool.get(), Random(static_cast<uint64_t>(self.ranks))};
    constexpr void (*kForms[])(Form&) = {gather,       scatter,          reduce,      all_to_all,
                                         all_gather_v, reduce_scatter_v, all_to_all_v};
    for (int i = 0; i < 200 && !HasFailure(); ++i)
      kForms[form.random.below(std::size(kForms))](form);
    // The barrier sees the signals that an operation which completed early has left unseen.
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}
INSTANTIATE_TEST_SUITE_P(Shm, Forms,
                         ::testing::Combine(::testing::ValuesIn(kFormWays),
                                            ::testing::Values(1, 2, 3, 5)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

void broadcast_often(Rank& self) {
  Random random(static_cast<uint64_t>(self.rank) + 1);
  std::vector<uint64_t> words(4000);
  for (uint64_t round = 0; round < 2000; round++) {
    const int root = round % 97 == 0 ? static_cast<int>(round / 97) % self.ranks : 0;
    const size_t count = round % 3 == 0 ? 2 : round % 10 == 1 ? round % 4000 + 1 : round % 400 + 1;
    if (self.rank == root) std::fill(words.begin(), words.end(), round);
    if (random.below(50) == 0) dawdle(random);
    ASSERT_OK(
        fsccl_broadcast(words.data(), count, FSCCL_UINT64, root, self.comm, nullptr, nullptr));
    ASSERT_EQ(words[0], round);
    ASSERT_EQ(words[count - 1], round);
  }
}

// The root of many broadcasts runs ahead of the others, but only so far that it overwrites nothing
// that they still have to read.
TEST(Lazy, ManyBroadcastsInARow) {
  for (const char* single_copy : {"auto", "off"})
    for (const int ranks : {2, 3, 5}) {
      const Settings settings{{"FSCCL_SINGLE_COPY", single_copy}, {"FSCCL_SLOT_BYTES", "4K"}};
      run_ranks(ranks, broadcast_often);
    }
}

TEST(Group, BlockingCallsEndTogether) {
  run_ranks(3, [](Rank& self) {
    fsccl_comm_t other = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &other));
    std::vector<float> a(3000), b(3000), mine(1000, static_cast<float>(self.rank));
    // Ranks make the two calls in different orders. Without the group each rank would wait in its
    // first call for ever.
    ASSERT_OK(fsccl_group_start());
    ASSERT_OK(fsccl_group_start());
    const bool swap = self.rank == 1;
    ASSERT_OK(fsccl_all_gather(mine.data(), swap ? b.data() : a.data(), 1000, FSCCL_FLOAT32,
                               swap ? other : self.comm, nullptr, nullptr));
    ASSERT_OK(fsccl_group_end());
    ASSERT_OK(fsccl_all_gather(mine.data(), swap ? a.data() : b.data(), 1000, FSCCL_FLOAT32,
                               swap ? self.comm : other, nullptr, nullptr));
    ASSERT_OK(fsccl_group_end());
    for (size_t i = 0; i < 3000; i++) ASSERT_EQ(a[i] + b[i], 2 * static_cast<float>(i / 1000));
    EXPECT_ERROR(fsccl_group_end(), FSCCL_ERR_INVALID_STATE, "fsccl_group_start");
    EXPECT_OK(fsccl_barrier(other, nullptr, nullptr));
    EXPECT_OK(fsccl_comm_destroy(other));
  });
}

TEST(Forms, WrongCounts) {
  run_ranks(2, [](Rank& self) {
    std::vector<float> in(10), out(10);
    const size_t overlapping[] = {0, 1}, counts[] = {2, 2}, wild_counts[] = {size_t{1} << 60, 1};
    EXPECT_ERROR(fsccl_all_gather_v(in.data(), out.data(), nullptr, nullptr, FSCCL_FLOAT32,
                                    self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "counts");
    EXPECT_ERROR(fsccl_all_gather_v(in.data(), out.data(), counts, overlapping, FSCCL_FLOAT32,
                                    self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "overlap");
    EXPECT_ERROR(fsccl_all_gather_v(in.data(), out.data(), wild_counts, nullptr, FSCCL_FLOAT32,
                                    self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "counts[0]");
    const size_t too_many[] = {size_t{1} << 46, 1};  // fewer than 2^47 elements, but not bytes
    EXPECT_ERROR(fsccl_all_gather_v(in.data(), out.data(), too_many, nullptr, FSCCL_FLOAT32,
                                    self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "counts[0]", "address space");
    EXPECT_ERROR(fsccl_reduce_scatter_v(in.data(), out.data(), too_many, FSCCL_FLOAT32, FSCCL_SUM,
                                        self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "counts[0]", "address space");
    EXPECT_ERROR(
        fsccl_gather(in.data(), out.data(), 1, FSCCL_FLOAT32, 2, self.comm, nullptr, nullptr),
        FSCCL_ERR_INVALID_ARGUMENT, "root 2");
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // nothing was lost
    const size_t zeros[] = {0, 0}, one[] = {1, 1}, begins[] = {0, 1};
    EXPECT_ERROR(fsccl_all_to_all_v(in.data(), one, begins, in.data(), one, begins, FSCCL_FLOAT32,
                                    self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "send and recv overlap");
    EXPECT_ERROR(fsccl_all_to_all_v(in.data(), one, begins, out.data(), one, zeros, FSCCL_FLOAT32,
                                    self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "overlap");
    // Each rank's arguments are valid. Only a comparison of all ranks' arguments shows that they do
    // not fit.
    EXPECT_ERROR(fsccl_all_to_all_v(in.data(), one, begins, out.data(), self.rank ? one : zeros,
                                    begins, FSCCL_FLOAT32, self.comm, nullptr, nullptr),
                 FSCCL_ERR_MISMATCH, "send_counts");
  });
}

// Displacements are each rank's own, so rules look at the counts alone.
TEST(Forms, RulesDoNotSeeDisplacements) {
  const Settings settings{{"FSCCL_PLAN", "all_gather:-64K=slots,all_gather:64K-=direct"}};
  run_ranks(2, [](Rank& self) {
    constexpr size_t kCount = 6000;
    const size_t counts[] = {kCount, kCount}, apart[] = {0, 5 * kCount};
    std::vector<float> in(kCount, static_cast<float>(self.rank + 1)), out(6 * kCount);
    for (int round = 0; round < 3; round++) {
      std::fill(out.begin(), out.end(), 0.0f);
      ASSERT_OK(fsccl_all_gather_v(in.data(), out.data(), counts, self.rank ? apart : nullptr,
                                   FSCCL_FLOAT32, self.comm, nullptr, nullptr));
      const size_t second = self.rank ? apart[1] : kCount;
      for (size_t i = 0; i < kCount; i++) {
        ASSERT_EQ(out[i], 1.0f);
        ASSERT_EQ(out[second + i], 2.0f);
      }
    }
  });
}

TEST(Forms, RanksThatDisagreeOnParts) {
  run_ranks(2, [](Rank& self) {
    std::vector<float> in(2000), out(4000);
    const size_t counts[] = {1000, self.rank ? size_t{1001} : size_t{1002}};
    const fsccl_status_t status = fsccl_all_gather_v(in.data(), out.data(), counts, nullptr,
                                                     FSCCL_FLOAT32, self.comm, nullptr, nullptr);
    EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "count");
  });
}

}  // namespace
}  // namespace fsccl::testing
