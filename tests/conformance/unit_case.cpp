#include "unit_case.h"

#include <algorithm>
#include <cinttypes>
#include <numeric>

#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

constexpr size_t kMostUnitReports = 3;
constexpr fsccl_dtype_t kFloats[] = {FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64};

// Returns a value in [-1, 1) with many significant bits, so that it rounds differently in every
// dtype.
double value_of(uint64_t seed) {
  return static_cast<double>(static_cast<int64_t>(Random(seed).next()) >> 11) * 0x1p-52;
}

uint64_t count_of(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

}  // namespace

std::string describe(const UnitCase& c) {
  const char* const kLayouts[] = {"flat", "per_param", "ragged"};
  std::string text = std::string(kLayouts[c.layout]) + " wire " + name_of(c.wire) + " reduce " +
                     name_of(c.reduce) + " grad " + name_of(c.grad) + " sharing " +
                     std::to_string(c.sharing) + " keep " + std::to_string(c.keep) +
                     (c.by_parameter ? " by parameter" : "") + " seed " + std::to_string(c.seed) +
                     ":";
  for (const UnitCase::Param& param : c.params) {
    text += std::string(" ") + name_of(param.dtype) + "[";
    for (const int64_t dim : param.shape) text += std::to_string(dim) + " ";
    text += std::string("]") + (param.frozen ? "F" : "") + (param.own_shard ? "s" : "") +
            (param.own_grad ? "g" : "");
    if (param.block_rows || param.block_columns)
      text += std::to_string(param.block_rows) + "x" + std::to_string(param.block_columns);
    if (param.tied_to >= 0) text.append("=").append(std::to_string(param.tied_to));
  }
  return text;
}

UnitCase simple_unit(std::vector<std::vector<int64_t>> shapes, uint64_t seed) {
  UnitCase c;
  for (auto& shape : shapes) {
    UnitCase::Param param;
    param.shape = std::move(shape);
    c.params.push_back(std::move(param));
  }
  c.seed = seed;
  return c;
}

UnitCase random_unit(Random& random, int64_t most_elements) {
  UnitCase c;
  c.layout = static_cast<fsccl_layout_t>(random.below(3));
  c.wire = kFloats[random.below(4)];
  c.reduce = kFloats[random.below(4)];
  c.grad = kFloats[random.below(4)];
  c.sharing = static_cast<fsccl_sharing_t>(random.below(3));
  c.keep = static_cast<fsccl_keep_t>(random.below(3));
  c.keep_budget_bytes = random.below(2) ? 0 : 1 << 20;
  c.marks_changes = random.below(2);
  c.by_parameter = random.below(2);
  if (c.by_parameter) c.keep = FSCCL_KEEP_NONE;
  c.seed = random.next();
  for (uint64_t n = 1 + random.below(6); n > 0; --n) {
    UnitCase::Param param;
    int64_t left = most_elements;
    for (uint64_t dims = random.below(4); dims > 0; --dims) {
      param.shape.push_back(static_cast<int64_t>(
          random.below(static_cast<uint64_t>(std::min<int64_t>(left, 40)) + 1)));
      if (random.below(8) != 0 && param.shape.back() == 0) param.shape.back() = 1;
      left /= std::max<int64_t>(param.shape.back(), 1);
    }
    param.dtype = kFloats[random.below(4)];
    param.frozen = random.below(5) == 0;
    param.own_shard = random.below(4) == 0;
    param.own_grad = random.below(4) == 0;
    if (c.layout == FSCCL_LAYOUT_RAGGED && random.below(3) != 0)
      param.block_rows = random.below(9), param.block_columns = random.below(9);
    if (!c.params.empty() && random.below(5) == 0) {
      const size_t to = random.below(c.params.size());
      if (c.params[to].tied_to < 0) {
        param = c.params[to];
        param.own_shard = param.own_grad = false;
        param.tied_to = static_cast<int>(to);
      }
    }
    c.params.push_back(param);
  }
  return c;
}

std::string name_of(const UnitCase& c) {
  return std::string("unit ").append(std::to_string(c.seed));
}

fsccl_unit_config_t config_of(const UnitCase& c, fsccl_comm_t comm, fsccl_pool_t pool,
                              const std::string& name) {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.name = name.c_str();
  config.layout = c.layout;
  config.shard_comm = comm;
  config.pool = pool;
  config.wire_dtype = c.wire;
  config.reduce_dtype = c.reduce;
  config.grad_dtype = c.grad;
  config.sharing = c.sharing;
  config.keep = c.keep;
  config.keep_budget_bytes = c.keep_budget_bytes;
  config.marks_changes = c.marks_changes;
  if (c.gather_codec.kind != FSCCL_CODEC_NONE) config.gather_codec = &c.gather_codec;
  if (c.reduce_codec.kind != FSCCL_CODEC_NONE) config.reduce_codec = &c.reduce_codec;
  return config;
}

fsccl_param_t param_of(const UnitCase::Param& given) {
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = static_cast<int>(given.shape.size());
  std::copy(given.shape.begin(), given.shape.end(), param.shape);
  param.dtype = given.dtype;
  param.flags = given.frozen ? FSCCL_PARAM_FROZEN : 0;
  param.tied_to = given.tied_to;
  param.block_rows = given.block_rows;
  param.block_columns = given.block_columns;
  return param;
}

TestUnit::TestUnit(const UnitCase& c, fsccl_comm_t comm, fsccl_pool_t pool, fsccl_comm_t replicas)
    : case_(c),
      comm_(comm),
      shard_memory_(c.params.size()),
      grad_memory_(c.params.size()),
      whole_grads_(c.params.size()),
      pointers_(c.params.size()) {
  EXPECT_OK(fsccl_comm_rank(comm, &rank_));
  EXPECT_OK(fsccl_comm_size(comm, &ranks_));
  if (hosts_given()) {
    hosts_.resize(static_cast<size_t>(ranks_));
    const int host = own_host();
    EXPECT_OK(fsccl_all_gather(&host, hosts_.data(), 1, FSCCL_INT32, comm, nullptr, nullptr));
  }
  const std::string name = name_of(c);
  fsccl_unit_config_t config = config_of(c, comm, pool, name);
  config.replicate_comm = replicas;
  config.by_parameter = c.by_parameter && !replicas;
  std::vector<fsccl_param_t> params;
  for (size_t i = 0; i < c.params.size(); ++i) {
    const UnitCase::Param& given = c.params[i];
    fsccl_param_t param = param_of(given);
    // The memory is as large as the whole, because the library says only later which part of it is
    // this rank's.
    if (given.own_shard)
      param.shard =
          (shard_memory_[i] = std::vector<char>(numel(i) * fsccl_dtype_size(given.dtype) + 8))
              .data();
    if (given.own_grad)
      param.sharded_grad =
          (grad_memory_[i] = std::vector<char>(numel(i) * fsccl_dtype_size(c.grad) + 8)).data();
    params.push_back(param);
  }
  EXPECT_OK(fsccl_unit_create(&config, params.data(), params.size(), &unit_)) << describe(c);
}

TestUnit::~TestUnit() {
  if (unit_) {
    EXPECT_OK(fsccl_unit_destroy(unit_));
  }
}

uint64_t TestUnit::numel(size_t i) const { return count_of(case_.params[i].shape); }

std::vector<int> TestUnit::ranks_list() const {
  std::vector<int> list(static_cast<size_t>(ranks_));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

double TestUnit::master(size_t i, uint64_t element, uint64_t version) const {
  return round_to(case_.params[owner(i)].dtype,
                  value_of(mix(mix(case_.seed, version), owner(i) << 40 | element)));
}
double TestUnit::gradient(size_t i, uint64_t element, uint64_t step, int contributor) const {
  const uint64_t key = mix(mix(case_.seed ^ 0x9d, step), static_cast<uint64_t>(contributor));
  return round_to(case_.reduce, value_of(mix(key, owner(i) << 40 | element)));
}

void TestUnit::put_master(size_t i, void* place, uint64_t at, uint64_t element,
                          uint64_t version) const {
  const fsccl_dtype_t dtype = case_.params[owner(i)].dtype;
  if (is_float(dtype)) return store_float(dtype, place, at, master(i, element, version));
  const uint64_t bits = mix(mix(case_.seed, version), owner(i) << 40 | element);
  std::memcpy(static_cast<char*>(place) + at * fsccl_dtype_size(dtype), &bits,
              fsccl_dtype_size(dtype));
}

void TestUnit::write_shards(uint64_t version) {
  for (size_t i = 0; i < size(); ++i) {
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_shard(unit_, i, &view));
    for (uint64_t k = 0; k < view.count; ++k) put_master(i, view.data, k, view.offset + k, version);
  }
}

void TestUnit::check_shards(uint64_t version) {
  for (size_t i = 0; i < size(); ++i) {
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_shard(unit_, i, &view));
    EXPECT_EQ(view.dtype, case_.params[owner(i)].dtype);
    EXPECT_EQ(view.data == nullptr, view.count == 0);
    for (uint64_t k = 0; k < view.count; ++k) {
      char wanted[8] = {};
      put_master(i, wanted, 0, view.offset + k, version);
      const size_t bytes = fsccl_dtype_size(view.dtype);
      ASSERT_EQ(std::memcmp(static_cast<char*>(view.data) + k * bytes, wanted, bytes), 0)
          << "shard " << i << " element " << view.offset + k << " of " << describe(case_);
    }
  }
}

void TestUnit::check_layout() {
  std::vector<fsccl_param_t> shapes(size(), FSCCL_PARAM_INIT);
  for (size_t i = 0; i < size(); ++i) {
    shapes[i].dims = static_cast<int>(case_.params[i].shape.size());
    std::copy(case_.params[i].shape.begin(), case_.params[i].shape.end(), shapes[i].shape);
    shapes[i].tied_to = case_.params[i].tied_to;
    shapes[i].block_rows = case_.params[i].block_rows;
    shapes[i].block_columns = case_.params[i].block_columns;
  }
  std::vector<fsccl_piece_t> planned(size());
  ASSERT_OK(fsccl_layout_plan(case_.layout, shapes.data(), size(), ranks_, rank_, planned.data(),
                              nullptr));
  for (size_t i = 0; i < size(); ++i) {
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_shard(unit_, i, &view));
    EXPECT_EQ(view.count, planned[i].count) << describe(case_);
    EXPECT_EQ(view.count ? view.offset : 0, planned[i].begin) << describe(case_);
    const uint64_t mine[2] = {view.offset, view.count};
    std::vector<uint64_t> all(2 * static_cast<size_t>(ranks_));
    ASSERT_OK(fsccl_all_gather(mine, all.data(), 2, FSCCL_UINT64, comm_, nullptr, nullptr));
    uint64_t end = 0;
    for (size_t q = 0; q < static_cast<size_t>(ranks_); ++q) {
      if (all[2 * q + 1] == 0) continue;
      EXPECT_EQ(all[2 * q], end) << "parameter " << i << " rank " << q << " of " << describe(case_);
      end = all[2 * q] + all[2 * q + 1];
    }
    EXPECT_EQ(end, numel(i)) << describe(case_);
    if (case_.layout != FSCCL_LAYOUT_PER_PARAM || numel(i) == 0) continue;
    const auto& shape = case_.params[i].shape;
    const uint64_t rows = shape.empty() ? 1 : static_cast<uint64_t>(shape[0]),
                   width = numel(i) / rows, ranks = static_cast<uint64_t>(ranks_);
    const uint64_t chunk = (rows + ranks - 1) / ranks,
                   begin = std::min(rows, chunk * static_cast<uint64_t>(rank_));
    EXPECT_EQ(view.count, (std::min(rows, begin + chunk) - begin) * width)
        << "torch.chunk's rule; " << describe(case_);
  }
}

void TestUnit::unshard(fsccl_unshard_mode_t mode) {
  ASSERT_OK(fsccl_unit_unshard(unit_, mode, nullptr, nullptr)) << describe(case_);
}
void TestUnit::reshard() { ASSERT_OK(fsccl_unit_reshard(unit_, nullptr)) << describe(case_); }

const void* TestUnit::address(size_t i) {
  fsccl_view_t view{};
  EXPECT_OK(fsccl_unit_param(unit_, i, &view));
  return view.data;
}

void TestUnit::check_params(uint64_t version, size_t end) {
  size_t wrong = 0;
  for (size_t i = 0; i < std::min(end, size()); ++i) {
    if (end < size() && owner(i) != i) continue;
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_param(unit_, i, &view)) << describe(case_);
    ASSERT_EQ(view.count, numel(i));
    ASSERT_EQ(view.dtype, wire_of(i));
    EXPECT_EQ(view.offset, 0u);
    EXPECT_EQ(view.data == nullptr, view.count == 0);
    if (case_.layout != FSCCL_LAYOUT_FLAT) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
    }
    for (uint64_t k = 0; k < view.count; ++k) {
      char wanted[8] = {};
      if (is_float(view.dtype))
        store_float(view.dtype, wanted, 0, master(i, k, version));
      else
        put_master(i, wanted, 0, k, version);
      const size_t bytes = fsccl_dtype_size(view.dtype);
      if (std::memcmp(static_cast<char*>(view.data) + k * bytes, wanted, bytes) == 0) continue;
      if (++wrong <= kMostUnitReports)
        ADD_FAILURE() << "rank " << rank_ << ": parameter " << i << " element " << k
                      << " is not that of version " << version << " of " << describe(case_);
    }
  }
  EXPECT_EQ(wrong, 0u) << describe(case_);
}

void TestUnit::write_params(uint64_t version) {
  for (size_t i = 0; i < size(); ++i) {
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_param(unit_, i, &view));
    for (uint64_t k = 0; k < view.count; ++k) {
      if (is_float(view.dtype)) store_float(view.dtype, view.data, k, master(i, k, version));
    }
  }
}

void TestUnit::write_grads(uint64_t step, int contributor) {
  for (size_t i = 0; i < size(); ++i)
    if (has_gradient(i)) write_grad(i, step, contributor);
}

void TestUnit::write_grad(size_t i, uint64_t step, int contributor) {
  fsccl_view_t view{};
  ASSERT_OK(fsccl_unit_grad(unit_, i, nullptr, &view)) << describe(case_);
  ASSERT_EQ(view.count, numel(i));
  ASSERT_EQ(view.dtype, case_.reduce);
  for (uint64_t k = 0; k < view.count; ++k)
    store_float(case_.reduce, view.data, k, gradient(i, k, step, contributor));
}

fsccl_reduce_result_t TestUnit::backward_by_parameter(uint64_t step, int contributor,
                                                      uint64_t version) {
  fsccl_reduce_result_t sum{0, 1};
  std::vector<fsccl_reduce_result_t> results(size());
  std::vector<fsccl_work_t> works(size());
  const auto finish = [&](size_t i) {
    if (works[i]) {
      EXPECT_OK(fsccl_work_wait(works[i], -1));
    }
    if (!has_gradient(i) || owner(i) != i) return;
    sum.norm_squared += results[i].norm_squared;
    sum.finite = sum.finite && results[i].finite;
  };
  const void* const* own = own_grads(step, contributor);
  for (size_t i = size(); i-- > 0;) {
    if (owner(i) != i) continue;
    check_params(version, i + 1);  // later parameters were given back
    const bool takes = has_gradient(i) && i % 2 == 0;
    if (takes) write_grad(i, step, contributor);
    EXPECT_OK(fsccl_unit_release(unit_, i, nullptr)) << describe(case_);
    fsccl_view_t view{};
    EXPECT_ERROR(fsccl_unit_param(unit_, i, &view), FSCCL_ERR_INVALID_STATE, "released");
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.first = i;
    config.count = 1;
    config.result = &results[i];
    config.grads = takes ? nullptr : own;
    reduce(&config, &works[i]);  // does nothing for a frozen parameter
  }
  for (size_t i = 0; i < size(); ++i) finish(i);
  reshard();
  return sum;
}

const void* const* TestUnit::own_grads(uint64_t step, int contributor) {
  for (size_t i = 0; i < size(); ++i) {
    pointers_[i] = nullptr;
    if (!has_gradient(i) || owner(i) != i) continue;
    whole_grads_[i].resize(numel(i) * fsccl_dtype_size(case_.reduce) + 8);
    for (uint64_t k = 0; k < numel(i); ++k)
      store_float(case_.reduce, whole_grads_[i].data(), k, gradient(i, k, step, contributor));
    pointers_[i] = whole_grads_[i].data();
  }
  return pointers_.data();
}

void TestUnit::reduce(const fsccl_reduce_config_t* config, fsccl_work_t* work) {
  const fsccl_status_t status = fsccl_unit_reduce_grads(unit_, config, nullptr, work);
  ASSERT_TRUE(status == FSCCL_OK || (work && status == FSCCL_IN_PROGRESS))
      << explain(status) << describe(case_);
}

// Returns the expected reduced gradient of an element. If ranks are on several hosts, the sum is
// made over the ranks of each host and then over hosts, unless settings ask for rank order.
// `of_rank` is the host of each contributor, and is empty if there is one host.
double TestUnit::reduced(size_t i, uint64_t element, const Reduction& one,
                         const std::vector<int>& ranks, const std::vector<int>& of_rank,
                         const Finish& finish, const double* accumulate) const {
  const auto setting = [](const char* name) {
    char text[64];
    EXPECT_OK(fsccl_config_get(name, text, sizeof text));
    return std::string(text);
  };
  const bool by_hosts =
      setting("FSCCL_REPRODUCIBLE") != "placement" && setting("FSCCL_HIERARCHY") != "off";
  std::vector<int> hosts;  // in the order of their first ranks
  std::vector<std::vector<double>> contributions;
  for (const int contributor : ranks) {
    const int host = of_rank.empty() || !by_hosts ? 0 : of_rank[static_cast<size_t>(contributor)];
    const auto found =
        static_cast<size_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
    if (found == hosts.size()) hosts.push_back(host), contributions.emplace_back();
    contributions[found].push_back(gradient(i, element, one.step, contributor));
  }
  return round_to(case_.grad,
                  reference_gradient(case_.reduce, case_.grad, contributions, finish, accumulate));
}

void TestUnit::check_sharded_grads(const std::vector<Reduction>& history,
                                   const std::vector<std::vector<int>>& replicas) {
  size_t wrong = 0;
  // A mean is divided after the sum over the replicas. If sums have 16 bits, the division by the
  // number of shards comes before that sum.
  const auto shards = static_cast<double>(replicas[0].size()),
             groups = static_cast<double>(replicas.size());
  const bool mean = history.front().scale == 0, narrow = fsccl_dtype_size(case_.grad) == 2;
  const double last = groups == 1 || !mean ? 1 : narrow ? groups : groups * shards;
  for (size_t i = 0; i < size(); ++i) {
    fsccl_view_t view{};
    if (!has_gradient(i)) {
      EXPECT_ERROR(fsccl_unit_sharded_grad(unit_, i, &view), FSCCL_ERR_INVALID_ARGUMENT, "frozen");
      continue;
    }
    ASSERT_OK(fsccl_unit_sharded_grad(unit_, i, &view)) << describe(case_);
    ASSERT_EQ(view.dtype, case_.grad);
    EXPECT_EQ(view.data == nullptr, view.count == 0);
    for (uint64_t k = 0; k < view.count; ++k) {
      // Each group of ranks is summed first, one reduction after the other, and then the groups.
      std::vector<double> sums;
      for (const auto& ranks : replicas) {
        double value = 0;
        for (const Reduction& one : history) {
          const Finish finish =
              one.scale != 0 ? Finish{one.scale * last, 1} : Finish{1, groups * shards / last};
          value = reduced(i, view.offset + k, one, ranks,
                          replicas.size() == 1 ? hosts_ : host_of_ranks(), finish,
                          one.accumulate ? &value : nullptr);
        }
        sums.push_back(value);
      }
      char wanted[8] = {};
      store_float(case_.grad, wanted, 0,
                  reference_gradient(case_.grad, case_.grad, {sums}, {1, last}, nullptr));
      if (std::memcmp(static_cast<char*>(view.data) + k * fsccl_dtype_size(case_.grad), wanted,
                      fsccl_dtype_size(case_.grad)) == 0)
        continue;
      if (++wrong <= kMostUnitReports)
        ADD_FAILURE() << "rank " << rank_ << ": sharded gradient " << i << " element "
                      << view.offset + k << " is " << load_float(case_.grad, view.data, k)
                      << ", not " << load_float(case_.grad, wanted, 0) << "; " << describe(case_);
    }
  }
  EXPECT_EQ(wrong, 0u) << describe(case_);
}

void TestUnit::check_result(const fsccl_reduce_result_t& result) {
  double sum = 0;
  bool finite = true;
  for (size_t i = 0; i < size(); ++i) {
    if (!has_gradient(i) || owner(i) != i) continue;
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_sharded_grad(unit_, i, &view));
    for (uint64_t k = 0; k < view.count; ++k) {
      const double value = load_float(case_.grad, view.data, k);
      finite = finite && std::isfinite(value);
      sum += value * value;
    }
  }
  EXPECT_EQ(result.finite != 0, finite) << describe(case_);
  if (finite) {
    EXPECT_NEAR(result.norm_squared, sum, 1e-12 * (1 + sum)) << describe(case_);
  }
}

void note_ready(void* context, fsccl_unit_t unit, size_t index) {
  auto& ready = *static_cast<ReadyShards*>(context);
  EXPECT_EQ(unit, ready.unit);
  fsccl_view_t view{};
  EXPECT_OK(fsccl_unit_sharded_grad(unit, index, &view)) << "where an optimizer begins";
  EXPECT_NE(view.data, nullptr);
  ready.indices.push_back(index);
}

}  // namespace fsccl::testing
