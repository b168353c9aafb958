// A simulated job: its ranks, which run the program of the seed with real engines and collectives
// over a simulated transport; the trouble that befalls them; and the invariants (README.md). It has
// two files: job.cpp (how it runs), job_ends.cpp (how it ends).
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective.h"
#include "program.h"
#include "setting.h"
#include "transports/sim/network.h"
#include "transports/sim/shared.h"

namespace fsccl::sim {

// The time between two looks of a thread that waits (engine/wait.cpp).
inline constexpr int64_t kSliceNs = 10 * kMillisecond;
inline constexpr int64_t kTimeoutMs = 60'000;  // timeout of an operation
// The time until a survivor hears of a death through the control tree.
inline constexpr int64_t kDetectionNs = 50 * kMillisecond;

struct Outcome {
  std::optional<std::string> broken;  // the rule that is broken
  uint64_t history = 0;               // equal for equal seeds
  std::vector<std::string> trace;
  std::string setting;
  Trouble trouble = Trouble::none;
  // The numbers of operations that ended well, and of ranks that ended with an error.
  uint64_t operations = 0, errors = 0;
};

class Job {
 public:
  Job(uint64_t seed, bool traced);
  ~Job();
  Outcome run();

 private:
  struct Pair {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Collectives> collectives;
  };
  struct Flying {
    Engine* engine;
    Call* call;
    size_t op;
  };
  struct Rank {
    std::unique_ptr<TransportNode> node;
    ArenaTable arenas;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Collectives> collectives;
    Lists lists;
    std::map<std::pair<int, int>, Pair> pairs;
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<Flying> flying;
    std::map<int, bool> lost;  // by lost rank: whether it has left
    size_t next = 0;           // the next operation of the program
    bool dead = false, over = false, gone = false;
    std::optional<Error> error;
    int64_t over_ns = 0, asleep_until_ns = 0, slice_ns = kSliceNs;
    int64_t planned_ns = INT64_MAX;
    uint64_t plan = 0;
    int words_left = -1;  // the rank dies with so many more messages, if above 0
  };

  Rank& rank(int r) { return ranks_[static_cast<size_t>(r)]; }
  void make_arenas();
  void open_network();
  void open_channels();
  EngineOptions engine_options(int r) const;
  CollectiveOptions collective_options() const;
  void plan_trouble();
  void break_down(std::string what) {
    if (!broken_) broken_ = std::move(what);
  }

  void plan(int r, int64_t ns);
  void wake(int r);
  bool speaks(int r);
  void act(int r);
  void issue(int r);
  void note_failure(int r);
  Pair* pair_of(int r, int from, int to);
  void move_on(Rank& me, Engine& engine);
  // Drives the rank's operations in flight. Returns true if one of them is over.
  bool look(int r);
  void end(int r);
  void die(int r);
  void abort(int r);
  void go(int r);
  void tell(int r, int lost, bool left);
  void hear(Rank& me, int lost, bool left);
  void judge();
  void judge_error(int r);
  bool names_damage(const Error& error) const;
  bool names_the_calls(const Error& error) const;
  bool checked(size_t op) const {
    return setting_.trouble != Trouble::garbled && op < mismatch_at_;
  }

  World world_;
  Setting setting_;
  std::vector<Op> program_;
  size_t mismatch_at_ = SIZE_MAX;
  int mismatches_ = -1;
  OpCode differs_ = OpCode::none;  // the call that rank mismatches_ makes at mismatch_at_
  std::unique_ptr<Network> network_;
  SharedMachine machine_;
  std::vector<Rank> ranks_;
  std::vector<int> dead_;
  std::pair<int, int> cut_{-1, -1};
  int aborted_ = -1;
  int64_t aborted_ns_ = 0, stopped_ns_ = 0;
  int64_t last_death_ns_ = 0;
  bool paused_ = false;
  uint64_t operations_ = 0;
  std::optional<std::string> broken_;
};

}  // namespace fsccl::sim
