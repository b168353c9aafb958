// fsccl-perf step replays the communication and the memory of FSDP steps of a model, without its
// computation. All fp32 shards are written anew before every step, and gradients are written when a
// backward pass would write them, both off the clock. step_schedule.h has the order and the bounds.
// A dry run makes the same calls on a pool with dry_run, and writes and checks nothing, so a model
// can be planned on a machine in which it does not fit.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fsccl/codec.h"
#include "model_layout.h"
#include "session.h"

namespace fsccl::perf {

struct StepOptions {
  // type of gathered parameters and of gradients; shards and sharded gradients are fp32
  fsccl_dtype_t wire = FSCCL_BFLOAT16;
  fsccl_layout_t layout = FSCCL_LAYOUT_PER_PARAM;
  Block block;  // block of a ragged layout
  fsccl_keep_t keep = FSCCL_KEEP_NONE;
  uint64_t keep_budget_bytes = 0;
  bool gradient_slots = true;
  bool shared = true;
  // true if the schedule is declared before the first step instead of recorded from it
  bool declare = false;
  // a slot for each parameter and gradient, given back one by one in the backward pass
  bool by_parameter = false;
  int prefetch = 1;
  bool drifts = false;  // each step changes shards only a little (drift.h)
  // codec of gathers; with one, steps with and without it are compared (step_codec.h)
  fsccl_codec_kind_t codec = FSCCL_CODEC_NONE;
  bool codec_always = false;  // the delta codec does not decline where it loses
  int steps = 5;
  int warmup = 1;
  bool dry_run = false;  // takes no memory, moves no data; only the bookkeeping runs
  bool json = false;
  std::string report;  // path of the HTML page; empty if there is none
  // paths of rank 0's fsccl_pool_snapshot() after the measured steps
  std::vector<std::string> snapshots;
};

// Returns the number of wrong elements over all ranks.
uint64_t run_step(Session& session, const Model& model, const StepOptions& options);

}  // namespace fsccl::perf
