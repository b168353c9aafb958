// Tests HSDP that goes on after a death without a checkpoint. Ranks train two replicas, each
// sharded over some of them, and one rank is killed at any moment. The survivors shrink,
// redistribute parameters and the optimizer's state, and train on. Their final state is bit for bit
// that of a job which went on with the same ranks at the same step without a death. If no copy is
// left, all ranks name the lost shard.
#include <fsccl/fsccl.h>
#include <fsccl/redistribute.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::redistribute_tests {
namespace {

constexpr int64_t kLimitMs = 100'000;
constexpr uint64_t kMoreSteps = 5;
constexpr int kGroups = 2;
const std::vector<std::vector<int64_t>> kShapes = {{7, 5}, {13}, {3, 2, 4}};

int number_of(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

// Exits with the reason if a call has failed and this rank cannot go on.
void need(const char* what, fsccl_status_t status) {
  if (!good(what, status)) exit(1);
}

std::vector<fsccl_param_t> params() {
  std::vector<fsccl_param_t> params;
  for (const auto& shape : kShapes) {
    params.push_back(FSCCL_PARAM_INIT);
    params.back().dims = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), params.back().shape);
  }
  return params;
}

// A model of one unit on some ranks, and its optimizer, which is momentum.
class Model {
 public:
  Model(fsccl_comm_t whole, fsccl_layout_t layout, fsccl_comm_t shard, fsccl_comm_t replicas)
      : layout_(layout), shard_(shard) {
    need("pool", fsccl_pool_create(whole, nullptr, &pool_));
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.layout = layout;
    config.shard_comm = shard;
    config.replicate_comm = replicas;
    config.pool = pool_;
    config.wire_dtype = config.reduce_dtype = FSCCL_FLOAT32;
    const std::vector<fsccl_param_t> given = params();
    need("unit", fsccl_unit_create(&config, given.data(), given.size(), &unit_));
    for (size_t i = 0; i < given.size(); i++) {
      fsccl_view_t view{};
      need("shard", fsccl_unit_shard(unit_, i, &view));
      weights_.push_back(view);
      momenta_.emplace_back(view.count, 0.0f);
      need("sharded grad", fsccl_unit_sharded_grad(unit_, i, &view));
      grads_.push_back(view);
    }
  }
  ~Model() {
    need("unit destroy", fsccl_unit_destroy(unit_));
    need("pool destroy", fsccl_pool_destroy(pool_));
  }
  Model(const Model&) = delete;

  void begin() {
    for (const fsccl_view_t& view : weights_)
      for (uint64_t at = 0; at < view.count; at++)
        static_cast<float*>(view.data)[at] = std::sin(static_cast<float>(view.offset + at));
  }
  // Reduces gradients. Each rank's gradient is its own function of the whole parameters.
  fsccl_status_t reduce(uint64_t step, int self) {
    fsccl_status_t status = fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr);
    for (size_t i = 0; i < weights_.size() && status >= 0; i++) {
      fsccl_view_t param{}, grad{};
      status = fsccl_unit_param(unit_, i, &param);
      if (status >= 0) status = fsccl_unit_grad(unit_, i, nullptr, &grad);
      for (uint64_t at = 0; at < grad.count && status >= 0; at++)
        static_cast<float*>(grad.data)[at] =
            std::sin(static_cast<float*>(param.data)[at] + 0.1f * static_cast<float>(self)) *
            std::cos(static_cast<float>(step));
    }
    if (status >= 0) status = fsccl_unit_reshard(unit_, nullptr);
    return status >= 0 ? fsccl_unit_reduce_grads(unit_, nullptr, nullptr, nullptr) : status;
  }
  void update() {
    for (size_t i = 0; i < weights_.size(); i++)
      for (uint64_t at = 0; at < weights_[i].count; at++) {
        float& momentum = momenta_[i][at];
        momentum = 0.9f * momentum + static_cast<float*>(grads_[i].data)[at];
        static_cast<float*>(weights_[i].data)[at] -= 0.05f * momentum;
      }
    need("mark", fsccl_unit_mark_changed(unit_));
  }
  uint64_t hash_of_all() {
    need("unshard", fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr));
    uint64_t hash = 0;
    for (size_t i = 0; i < weights_.size(); i++) {
      fsccl_view_t view{};
      need("param", fsccl_unit_param(unit_, i, &view));
      for (uint64_t at = 0; at < view.count; at++) {
        uint32_t bits;
        std::memcpy(&bits, static_cast<float*>(view.data) + at, sizeof bits);
        hash = hash * 0x100000001b3u + bits;
      }
    }
    need("reshard", fsccl_unit_reshard(unit_, nullptr));
    return hash;
  }
  fsccl_sharding_t sharding() const {
    fsccl_sharding_t sharding{layout_, 0, 0};
    need("size", fsccl_comm_size(shard_, &sharding.ranks));
    need("rank", fsccl_comm_rank(shard_, &sharding.rank));
    return sharding;
  }

  // Redistributes `from` to `to`, and sets *dealt to the step of the redistributed state.
  static fsccl_status_t move(Model& from, Model& to, uint64_t step, fsccl_comm_t comm,
                             uint64_t* dealt) {
    const std::vector<fsccl_param_t> given = params();
    fsccl_redistribute_config_t config = FSCCL_REDISTRIBUTE_CONFIG_INIT;
    config.params = given.data();
    config.count = given.size();
    config.from = from.sharding();
    config.to = to.sharding();
    config.version = step;
    std::vector<fsccl_redistributed_t> buffers;
    for (size_t i = 0; i < given.size(); i++) {
      buffers.push_back({i, FSCCL_FLOAT32, from.weights_[i].data, to.weights_[i].data});
      buffers.push_back({i, FSCCL_FLOAT32, from.momenta_[i].data(), to.momenta_[i].data()});
    }
    return fsccl_redistribute(&config, buffers.data(), buffers.size(), comm, dealt);
  }

 private:
  fsccl_layout_t layout_;
  fsccl_comm_t shard_;
  fsccl_pool_t pool_ = nullptr;
  fsccl_unit_t unit_ = nullptr;
  std::vector<fsccl_view_t> weights_, grads_;
  std::vector<std::vector<float>> momenta_;
};

uint64_t newest(uint64_t step, fsccl_comm_t comm) {
  need("newest",
       fsccl_all_reduce(&step, &step, 1, FSCCL_UINT64, FSCCL_MAX, comm, nullptr, nullptr));
  return step;
}

// Redistributes the state over the ranks of `*left`, and trains to the end. If a rank dies
// meanwhile, it shrinks `*left` and redistributes again.
void go_on(Model& old, uint64_t step, fsccl_layout_t layout, int self, fsccl_comm_t* left) {
  if (newest(step, *left) > step) old.update(), step++;  // others had completed the barrier
  while (true) {
    auto made = std::make_unique<Model>(*left, layout, *left, nullptr);
    fsccl_status_t status = fsccl_barrier(*left, nullptr, nullptr);  // all have made the model
    if (status >= 0 && number_of("TEST_FALLS", -1) == self) raise(SIGKILL);
    if (status >= 0) status = Model::move(old, *made, step, *left, &step);
    if (status == FSCCL_ERR_PEER_DEAD || status == FSCCL_ERR_ABORTED) {
      made.reset();
      fsccl_comm_t fewer = nullptr;
      need("shrink again", fsccl_comm_shrink(*left, nullptr, &fewer));
      need("destroy", fsccl_comm_destroy(*left));
      *left = fewer;
      continue;
    }
    if (status == FSCCL_ERR_INVALID_STATE) {
      printf("lost: %s\n", last_error().text);
      return;
    }
    need("reshard", status);
    printf("resumed at %d\n", static_cast<int>(step));
    for (uint64_t end = step + kMoreSteps; step < end; step++)
      need("train", made->reduce(step, self)), made->update();
    printf("final %016lx\n", made->hash_of_all());
    return;
  }
}

// Returns true if the variable has the digit of the rank.
bool names(const char* variable, int rank) {
  const char* const ranks = std::getenv(variable);
  return ranks && std::strchr(ranks, '0' + rank);
}

// Trains until a rank dies and goes on without it. The ranks of TEST_VICTIMS do not go on: they
// wait to be killed, so that all of them are gone. If TEST_UNTIL is given, no rank dies: training
// goes to that step, and from there on without the ranks of TEST_WITHOUT.
int trainer(const Child& self) {
  const int shards = self.ranks / kGroups, group = self.rank / shards,
            until = number_of("TEST_UNTIL", 0);
  const auto before = static_cast<fsccl_layout_t>(number_of("TEST_FROM", 0));
  const auto after = static_cast<fsccl_layout_t>(number_of("TEST_TO", 0));
  fsccl_comm_t whole = nullptr, shard = nullptr, replicas = nullptr, left = nullptr;
  need("create", fsccl_comm_create(nullptr, &whole));
  need("split", fsccl_comm_split(whole, group, self.rank, nullptr, &shard));
  need("split", fsccl_comm_split(whole, self.rank % shards, self.rank, nullptr, &replicas));
  uint64_t step = 0;
  {
    Model old(whole, before, shard, replicas);
    old.begin();
    fsccl_status_t status = FSCCL_OK;
    // A step is done once all ranks have its gradients, because the update needs no other rank.
    while (until == 0 || step < static_cast<uint64_t>(until)) {
      status = old.reduce(step, self.rank);
      if (status >= 0) status = fsccl_barrier(whole, nullptr, nullptr);
      if (status < 0) break;
      old.update();
      printf("step %d done\n", static_cast<int>(++step));
    }
    while (until == 0 && names("TEST_VICTIMS", self.rank)) pause();
    if (until == 0) {
      for (const fsccl_comm_t comm : {shard, replicas, whole})
        need("abort", fsccl_comm_abort(comm));
      need("shrink", fsccl_comm_shrink(whole, nullptr, &left));
    } else {
      const int out = names("TEST_WITHOUT", self.rank) ? FSCCL_COLOR_NONE : 0;
      need("survivors", fsccl_comm_split(whole, out, self.rank, nullptr, &left));
    }
    if (left) go_on(old, step, after, self.rank, &left);
  }
  for (const fsccl_comm_t comm : {left, shard, replicas, whole})
    if (comm) need("destroy", fsccl_comm_destroy(comm));
  return 0;
}

struct Case {
  int ranks;
  std::vector<int> victims;
  fsccl_layout_t from, to;
  int falls = -1;  // the rank that dies while state is redistributed, or -1
};

std::string digits(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += std::to_string(rank);
  return text;
}

class Training {
 public:
  Training(const Case& c, int port, const Variables& more) : ranks_(c.ranks) {
    for (int rank = 0; rank < c.ranks; rank++) {
      Variables variables = job(rank, c.ranks, port);
      variables.emplace_back("TEST_FROM", std::to_string(c.from));
      variables.emplace_back("TEST_TO", std::to_string(c.to));
      variables.emplace_back("TEST_VICTIMS", digits(c.victims));
      variables.insert(variables.end(), more.begin(), more.end());
      processes_.start("trainer", rank, c.ranks, variables);
    }
  }
  void kill_after(int step, const std::vector<int>& victims) {
    for (int rank = 0; rank < ranks_; rank++)
      ASSERT_TRUE(
          processes_.wait_for_output(rank, "step " + std::to_string(step) + " done", kLimitMs))
          << processes_.report();
    for (const int victim : victims) processes_.kill(victim, SIGKILL);
  }
  // Returns the line that begins with `begin`, which all ranks but the victims must print alike.
  std::string all_say(const std::string& begin, const std::vector<int>& victims) {
    processes_.finish(kLimitMs);
    std::set<std::string> said;
    for (int rank = 0; rank < ranks_; rank++) {
      if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
      EXPECT_EQ(processes_.exit_code(rank), 0) << rank << processes_.report();
      const std::string& output = processes_.output(rank);
      const size_t at = output.find(begin);
      said.insert(
          at == std::string::npos
              ? ""
              : output.substr(at + begin.size(), output.find('\n', at) - at - begin.size()));
    }
    EXPECT_EQ(said.size(), 1u) << processes_.report();
    EXPECT_NE(*said.begin(), "") << begin << processes_.report();
    return *said.begin();
  }

 private:
  int ranks_;
  Processes processes_;
};

int port(int number) { return 20000 + getpid() % 400 * 100 + 50 + number; }

void goes_on(const Case& c, int number) {
  std::vector<int> gone = c.victims;
  Training killed(c, port(number), {{"TEST_FALLS", std::to_string(c.falls)}});
  killed.kill_after(1 + number % 3, c.victims);
  if (c.falls >= 0) gone.push_back(c.falls);
  const std::string resumed = killed.all_say("resumed at ", gone),
                    end = killed.all_say("final ", gone);
  if (::testing::Test::HasFailure()) return;
  Training reference(c, port(number + 20),
                     {{"TEST_UNTIL", resumed}, {"TEST_WITHOUT", digits(gone)}});
  EXPECT_EQ(reference.all_say("resumed at ", gone), resumed);
  EXPECT_EQ(reference.all_say("final ", gone), end);
}

TEST(ReshardAfterADeath, OfTwoTimesTwo) {
  int number = 0;
  for (const int victim : {0, 3})
    goes_on({4, {victim}, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_PER_PARAM}, number++);
  goes_on({4, {1}, FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_RAGGED}, number++);
}

TEST(ReshardAfterADeath, OfTwoTimesThree) {
  int number = 10;
  goes_on({6, {2}, FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_FLAT}, number++);
  // Two shards have one copy each.
  goes_on({6, {0, 4}, FSCCL_LAYOUT_RAGGED, FSCCL_LAYOUT_PER_PARAM}, number++);
}

TEST(ReshardAfterADeath, AnotherDiesOverIt) {
  goes_on({6, {2}, FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, 4}, 15);
}

// Both ranks that had the second shard are killed.
TEST(ReshardAfterADeath, WhatIsLostIsNamed) {
  const std::vector<int> victims = {1, 3};
  Training job({4, victims, FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_FLAT}, port(19), {});
  job.kill_after(2, victims);
  const std::string lost = job.all_say("lost: ", victims);
  EXPECT_THAT(lost, ::testing::HasSubstr("no rank holds shard 1 of 2"));
  // The 72 elements are cut at 36, and the second shard is lost.
  EXPECT_THAT(lost, ::testing::HasSubstr("elements 1 .. 12 of parameter 1"));
}

const AddRoles roles{{"trainer", trainer}};

}  // namespace
}  // namespace fsccl::testing::redistribute_tests
