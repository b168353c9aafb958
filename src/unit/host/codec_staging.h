// Where coded bytes lie between the codec and the transport: one room for what a rank sends and one
// for what it receives, in the pool, shared by all units of a lane, whose gathers and sums run one
// after the other. With it goes what all of them know of the lane.
#pragma once
#include <atomic>
#include <memory>

#include "codec/blocks.h"
#include "codec/choice.h"
#include "record/metrics.h"
#include "unit/host/delta_copies.h"

namespace fsccl {

class CodecStaging {
 public:
  // That of the units of `lane` in `pool`, made by the first of them; it goes with the last.
  static std::shared_ptr<CodecStaging> of(HostPool& pool, Communicator& lane);
  ~CodecStaging();
  CodecStaging(const CodecStaging&) = delete;
  CodecStaging& operator=(const CodecStaging&) = delete;

  // So many bytes at least. No gather of the lane is under way. FSCCL_ERR_OUT_OF_MEMORY: the pool
  // has no room.
  Status reserve(uint64_t send_bytes, uint64_t receive_bytes);

  uint8_t* sent() const { return sent_.at; }
  uint8_t* received() const { return received_.at; }
  uint64_t bytes() const { return sent_.bytes + received_.bytes; }
  LinkCosts link;  // costs of the links of the thread that drives the lane
  DeltaCopies::Workspace work;

  // Sums over this rank's parts of all gathers of the lane, for fsccl_metrics. One thread at a time
  // adds.
  struct Sums {
    std::atomic<uint64_t> coded{0}, plain{0}, declined{0}, mended{0}, plain_bytes{0}, sent_bytes{0};
    std::atomic<uint64_t> blocks{0}, exact_blocks{0}, audited_blocks{0}, beyond_bound{0};
    std::atomic<float> largest_error{0};
    std::atomic<uint64_t> reduce_plain_bytes{0}, reduce_sent_bytes{0};
  };
  Sums sums;
  void count_blocks(const BlocksWritten& written);

 private:
  struct Room {
    uint8_t* at = nullptr;
    uint64_t bytes = 0;
  };
  CodecStaging(HostPool& pool, Communicator& lane);
  void tell(MetricSamples& samples, std::string_view id, const Communicator& lane) const;
  Status enlarge(Room* room, uint64_t bytes);

  HostPool& pool_;
  Room sent_, received_;
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace fsccl
