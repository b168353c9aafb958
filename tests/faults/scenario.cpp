#include "faults/scenario.h"

#include <unistd.h>

#include <cstring>
#include <initializer_list>

#include "faults/fault_points.h"
#include "fsccl/insight.h"
#include "fsccl/redistribute.h"

namespace fsccl::testing {
namespace {

constexpr size_t kCount = 6000;  // elements: too many for a line, enough for a slot
constexpr int kParams = 2;

// Returns an element that names its rank and place, so that all ranks can check it.
float element(int rank, size_t at) {
  return static_cast<float>(1000 * rank + static_cast<int>(at % 777));
}

float own[kCount], gathered[kRanks * kCount];

}  // namespace

const char* name_of(Phase phase) {
  static const char* const kNames[] = {"join", "work", "shrink", "exchange", "destroy"};
  return kNames[static_cast<int>(phase)];
}

// Returns true if the call succeeded. If it failed, this function aborts the communicator, because
// the other rank would not learn of the error otherwise.
bool Scenario::note(const char* call, fsccl_status_t status) {
  if (status >= 0) return true;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  if (outcome_.status == FSCCL_OK) {
    outcome_.status = status;
    outcome_.call = call;
    strncpy(outcome_.text, error.code == status ? error.text : "", sizeof outcome_.text - 1);
  }
  for (const fsccl_comm_t comm : {comm_, left_})
    if (comm) (void)fsccl_comm_abort(comm);
  return false;
}

void Scenario::join() {
  fsccl_unique_id_t id{};
  bool known = true;
  if (rank_ == 0) {
    known = note("unique_id_create", fsccl_unique_id_create(&id));
    if (known) known = ::write(write_id_, &id, sizeof id) == sizeof id;
  }
  close(write_id_);
  if (rank_ != 0) known = ::read(read_id_, &id, sizeof id) == sizeof id;
  close(read_id_);
  if (!known) return;  // Rank 0 has no id, so there is no job.
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = &id;
  config.rank = rank_;
  config.ranks = kRanks;
  note("comm_create", fsccl_comm_create(&config, &comm_));
}

void Scenario::work() {
  if (!comm_) return;
  (void)(collectives() && messages() && make_unit() && steps());
}

bool Scenario::collectives() {
  if (!note("pool_create", fsccl_pool_create(comm_, nullptr, &pool_)) ||
      !note("pool_alloc",
            fsccl_pool_alloc(pool_, (kRanks + 1) * kCount * sizeof(float), nullptr, &block_)))
    return false;
  auto* const send = static_cast<float*>(block_);
  for (size_t i = 0; i < kCount; i++) own[i] = send[i] = element(rank_, i);
  struct Way {
    const float* send;
    float* recv;
  };
  for (const Way& way : {Way{send, send + kCount}, Way{own, gathered}}) {
    if (!note("all_gather",
              fsccl_all_gather(way.send, way.recv, kCount, FSCCL_FLOAT32, comm_, nullptr, nullptr)))
      return false;
    for (size_t i = 0; i < kRanks * kCount; i++)
      wrong_bytes_ |= way.recv[i] != element(static_cast<int>(i / kCount), i % kCount);
    float sum[kCount / 2];
    if (!note("reduce_scatter", fsccl_reduce_scatter(way.send, sum, kCount / 2, FSCCL_FLOAT32,
                                                     FSCCL_SUM, comm_, nullptr, nullptr)))
      return false;
    for (size_t i = 0; i < kCount / 2; i++) {
      const size_t at = static_cast<size_t>(rank_) * (kCount / 2) + i;
      wrong_bytes_ |= sum[i] != element(0, at) + element(1, at);
    }
  }
  fsccl_work_t work = nullptr;
  int fd = -1;
  if (!note("barrier", fsccl_barrier(comm_, nullptr, &work))) return false;
  const bool watched = note("work_event_fd", fsccl_work_event_fd(work, &fd));
  if (fd >= 0) close(fd);
  return note("work_wait", fsccl_work_wait(work, -1)) && watched &&
         note("work_release", fsccl_work_release(work));
}

bool Scenario::messages() {
  float buffer[64] = {};
  if (rank_ == 0) {
    for (size_t i = 0; i < 64; i++) buffer[i] = element(0, i);
    if (!note("send", fsccl_send(buffer, 64, FSCCL_FLOAT32, 1, 5, comm_, nullptr, nullptr)))
      return false;
  } else {
    if (!note("recv", fsccl_recv(buffer, 64, FSCCL_FLOAT32, 0, 5, comm_, nullptr, nullptr)))
      return false;
    for (size_t i = 0; i < 64; i++) wrong_bytes_ |= buffer[i] != element(0, i);
  }
  return note("comm_split", fsccl_comm_split(comm_, 0, -rank_, nullptr, &part_)) &&
         note("barrier of a part", fsccl_barrier(part_, nullptr, nullptr));
}

bool Scenario::make_unit() {
  fsccl_param_t params[kParams];
  for (fsccl_param_t& param : params) {
    param = FSCCL_PARAM_INIT;
    param.dims = 2;
    param.shape[0] = 17;
    param.shape[1] = 65;
  }
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = comm_;
  config.pool = pool_;
  return note("unit_create", fsccl_unit_create(&config, params, kParams, &unit_));
}

bool Scenario::steps() {
  fsccl_view_t view{};
  for (size_t i = 0; i < kParams; i++) {
    if (!note("unit_shard", fsccl_unit_shard(unit_, i, &view))) return false;
    for (uint64_t at = 0; at < view.count; at++)
      static_cast<float*>(view.data)[at] = static_cast<float>((view.offset + at) % 128);
  }
  for (int step = 0; step < 2; step++) {
    if (!note("unit_unshard", fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr)) ||
        !note("unit_param", fsccl_unit_param(unit_, 1, &view)))
      return false;
    for (uint64_t at = 0; at < view.count; at++) {
      const float expected = static_cast<float>(at % 128);
      uint32_t bits = 0;
      std::memcpy(&bits, &expected, 4);
      wrong_bytes_ |= static_cast<uint16_t*>(view.data)[at] != bits >> 16;
    }
    for (size_t i = 0; i < kParams; i++) {
      if (!note("unit_grad", fsccl_unit_grad(unit_, i, nullptr, &view))) return false;
      std::memset(view.data, 0, view.count * 2);
    }
    if (!note("unit_reshard", fsccl_unit_reshard(unit_, nullptr)) ||
        !note("unit_reduce", fsccl_unit_reduce_grads(unit_, nullptr, nullptr, nullptr)) ||
        !note("pool_step", fsccl_pool_step(pool_)))
      return false;
  }
  return true;
}

// Shrinks the communicator once both ranks have finished using the old one. A rank that has given
// up by then is left out.
void Scenario::shrink() {
  if (!comm_) return;
  if (part_ && outcome_.status == FSCCL_OK)
    note("barrier of a part", fsccl_barrier(part_, nullptr, nullptr));
  if (!note("comm_abort", fsccl_comm_abort(comm_)) ||
      !note("comm_shrink", fsccl_comm_shrink(comm_, nullptr, &left_)))
    return;
  int size = 0;
  if (!note("comm_size", fsccl_comm_size(left_, &size)) || size < kRanks) return;
  // The ranks exchange whether they have been successful so far, to know whether both have a unit.
  float mine = outcome_.status == FSCCL_OK && unit_ ? 1 : 0, both = 0;
  exchanges_ =
      note("all_reduce of the survivors",
           fsccl_all_reduce(&mine, &both, 1, FSCCL_FLOAT32, FSCCL_MIN, left_, nullptr, nullptr)) &&
      both > 0;
}

void Scenario::exchange() {
  if (exchanges_) (void)reshard();
}

// The two ranks exchange their shards.
bool Scenario::reshard() {
  fsccl_param_t params[kParams];
  fsccl_redistributed_t buffers[kParams] = {};
  static float to[kParams][17 * 65];
  for (size_t i = 0; i < kParams; i++) {
    params[i] = FSCCL_PARAM_INIT;
    params[i].dims = 2;
    params[i].shape[0] = 17;
    params[i].shape[1] = 65;
    fsccl_view_t view{};
    if (!note("unit_shard", fsccl_unit_shard(unit_, i, &view))) return false;
    buffers[i] = {i, FSCCL_FLOAT32, view.data, to[i]};
  }
  fsccl_redistribute_config_t config = FSCCL_REDISTRIBUTE_CONFIG_INIT;
  config.params = params;
  config.count = kParams;
  config.from = {FSCCL_LAYOUT_PER_PARAM, kRanks, rank_};
  config.to = {FSCCL_LAYOUT_FLAT, kRanks, 1 - rank_};
  config.limit_bytes = 3000;
  if (!note("reshard", fsccl_redistribute(&config, buffers, kParams, left_, nullptr))) return false;
  fsccl_piece_t pieces[kParams];
  if (!note("layout_plan", fsccl_layout_plan(FSCCL_LAYOUT_FLAT, params, kParams, kRanks, 1 - rank_,
                                             pieces, nullptr)))
    return false;
  for (size_t i = 0; i < kParams; i++)
    for (uint64_t at = 0; at < pieces[i].count; at++)
      wrong_bytes_ |= to[i][at] != static_cast<float>((pieces[i].begin + at) % 128);
  return true;
}

bool Scenario::destroy() {
  if (unit_ && note("unit_destroy", fsccl_unit_destroy(unit_))) unit_ = nullptr;
  if (block_ && note("pool_free", fsccl_pool_free(pool_, block_, nullptr))) block_ = nullptr;
  if (pool_ && note("pool_destroy", fsccl_pool_destroy(pool_))) pool_ = nullptr;
  if (part_ && note("comm_destroy of a part", fsccl_comm_destroy(part_))) part_ = nullptr;
  if (left_ && note("comm_destroy of the survivors", fsccl_comm_destroy(left_))) left_ = nullptr;
  if (comm_ && note("comm_destroy", fsccl_comm_destroy(comm_))) comm_ = nullptr;
  return !unit_ && !block_ && !pool_ && !part_ && !left_ && !comm_;
}

}  // namespace fsccl::testing
